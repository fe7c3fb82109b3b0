"""A decoder of which only the parts in use are in memory: built by transformers without weights, filled block by block.

sources.py matches the tensors of the checkpoint with parameters.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import check_decoder, check_size, empty_model, explained, load_config
from squeeze.engine.calibration import Stop
from squeeze.engine.sources import check_whole, matched
from squeeze.engine.surroundings import surroundings
from squeeze.engine.tracing import traced
from squeeze.engine.walking import Call, Plan, Unwalkable, plan_of
from squeeze.errors import ModelError, SqueezeError
from squeeze.numerics.hadamard import rotate_blocks

__all__ = ["Call", "Network", "find_blocks", "is_linear", "weight_of"]

_LINEAR = ("Conv1D", "FalconLinear")  # classes of transformers with a forward of their own that is linear all the same


def is_linear(module: nn.Module) -> bool:
    """Return whether a module multiplies its inputs by its matrix: torch's Linear, or GPT-2's Conv1D, stored
    transposed.

    Other subclasses of Linear, such as DeepSeek V4's grouped one, multiply in ways of their own.
    """
    kind = type(module)
    return kind.__name__ in _LINEAR or getattr(kind, "forward", None) is nn.Linear.forward


def weight_of(module: nn.Module) -> torch.Tensor:
    """Return a view [O, I] of a linear module's weight, or of an embedding's table."""
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    return weight if isinstance(module, nn.Linear | nn.Embedding) else weight.T


class Network:
    """A decoder whose modules are loaded from a checkpoint when they are needed.

    Attributes:
        checkpoint: with a view of each expert's matrices.
        model: the network without weights.
        blocks: names of its decoder blocks.
        sources: the checkpoint's tensor for each parameter.
        changed: values that are loaded in place of the checkpoint's, by its tensors' names.
    """

    takes_stored = False  # whether matrices may be quantised, sparse or factorised

    def __init__(self, checkpoint: Checkpoint, device: str = "cpu") -> None:
        """Build the network. Raises ModelError if transformers cannot run it, FormatError if a tensor is missing."""
        self.checkpoint, self.device = checkpoint, torch.device(device)
        self._plans: dict[int, Plan] = {}  # by the length of sequences
        self.model = self._instantiate()
        found = matched(self.model, self.checkpoint)  # which `_instantiate` may have replaced
        self.checkpoint, self.sources = found.checkpoint, found.sources
        self.fused, self.unclaimed = found.fused, found.unclaimed
        self.changed: dict[str, torch.Tensor] = {}
        self.blocks = find_blocks(self.model)
        check_whole(self.model, found)
        self._turn_inputs()

    def _instantiate(self) -> Any:
        """Return the model without weights."""
        if self.checkpoint.config.get("quantization_config") and not self.takes_stored:
            raise ModelError(f"{self.checkpoint.folder}: is quantised already: use the original")
        return _empty_model(self.checkpoint)

    def module(self, name: str) -> nn.Module:
        module: nn.Module = self.model.get_submodule(name)
        return module

    def stored_name(self, name: str) -> str:
        """Return the checkpoint's name of a module that has a weight."""
        return self.sources.get(f"{name}.weight", f"{name}.weight").removesuffix(".weight")

    def check(self, tokens: torch.Tensor) -> None:
        """Raise SqueezeError if the network cannot run tokens [N, L]."""
        config = self.model.config.get_text_config()
        if tokens.numel() == 0:
            raise SqueezeError("expected calibration tokens, got none")
        if int(tokens.max()) >= config.vocab_size or int(tokens.min()) < 0:
            raise SqueezeError(f"expected calibration tokens from 0 to {config.vocab_size - 1}, the model's vocabulary")
        longest = getattr(config, "max_position_embeddings", None)
        if longest and 0 < longest < tokens.shape[1]:
            raise SqueezeError(f"sequences of {tokens.shape[1]} tokens are longer than the model's {longest}")

    def _turn_inputs(self) -> None:
        """Make modules multiply rotated inputs if the checkpoint says so; calibration.Recorder rotates them, too."""
        for name, module in self.model.named_modules():
            if is_linear(module) and (most := self.checkpoint.hadamard_size(self.stored_name(name))) > 1:
                module.hadamard_size = most  # type: ignore[assignment]
                module.register_forward_pre_hook(partial(_rotated, most))

    def load(self, name: str, narrow: nn.Module | None = None) -> nn.Module:
        """Fill a module with its weights in float32, and return it. Weights of the submodule `narrow` keep their own
        dtype."""
        module = self.module(name)
        stored = {key: self._source(f"{name}.{key}") for key, _ in module.named_parameters()}
        unchanged = [source for source in dict.fromkeys(stored.values()) if source not in self.changed]
        tensors = {**self.checkpoint.load(unchanged), **self.changed}
        for key, source in stored.items():
            owner, leaf = _owner(module, key)
            value = tensors[source].to(self.device, None if owner is narrow else torch.float32)
            owner._parameters[leaf] = nn.Parameter(value, requires_grad=False)
        del tensors
        for key, buffer in list(module.named_buffers()):
            owner, leaf = _owner(module, key)
            buffered = self.sources.get(f"{name}.{key}")
            is_stored = buffered is not None and leaf not in owner._non_persistent_buffers_set
            values = self.checkpoint.load([buffered], strict=False)[buffered] if buffered and is_stored else buffer
            owner._buffers[leaf] = values.to(self.device, buffer.dtype)
        return module

    def _source(self, name: str) -> str:
        """Return the checkpoint's tensor for a parameter, or for the one that it is tied to."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        return self.sources[name] if name in self.sources else self.sources[tied[name]]

    def release(self, name: str) -> None:
        """Release a module's weights."""
        for owner in self.module(name).modules():
            _release_own(owner)

    def above(self) -> list[str]:
        """Return the modules that contain the blocks, and the blocks."""
        stack, found = self.blocks[0].rpartition(".")[0], [""]
        for part in stack.split("."):
            found.append(f"{found[-1]}.{part}".lstrip("."))
        return [*found, *self.blocks]

    def load_own(self, name: str) -> None:
        """Fill a module with its own weights, without those of its submodules."""
        module = self.module(name)
        for leaf, _ in list(module.named_parameters(recurse=False)):
            source = self._source(f"{name}.{leaf}".lstrip("."))
            value = self.checkpoint.load([source])[source].to(self.device, torch.float32)
            module._parameters[leaf] = nn.Parameter(value, requires_grad=False)

    def release_own(self, name: str) -> None:
        """Release a module's own weights, without those of its submodules."""
        _release_own(self.module(name))

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Join dense experts in one tensor again if the checkpoint had them so."""
        for fused in self.fused:
            fused.restore(tensors)

    @cached_property
    def shared(self) -> set[str]:
        """The modules whose weight is tied to another's, as transformers does for some blocks."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        return {name.removesuffix(".weight") for name in [*tied, *tied.values()]}

    def load_stored(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Load tensors of the checkpoint unchanged.

        Raises FormatError if a parameter's tensor is not of finite floats; buffers, such as tables of numbers, may have
        any dtype.
        """
        names = list(names)
        others = self.checkpoint.load([name for name in names if name not in self._of_parameters], strict=False)
        return self.checkpoint.load(name for name in names if name in self._of_parameters) | others

    @cached_property
    def _of_parameters(self) -> set[str | None]:
        """The checkpoint's tensors that are parameters, not buffers."""
        return {self.sources.get(name) for name, _ in self.model.named_parameters(remove_duplicate=False)}

    def tensors_of(self, name: str) -> dict[str, str]:
        """Return the checkpoint's tensor for each parameter and stored buffer below a module."""
        return {key: source for key, source in self.sources.items() if key.startswith(f"{name}.")}

    def plan(self, tokens: torch.Tensor) -> Plan:
        """Return how blocks run on sequences as long as those of tokens [N, L]. Raises ModelError if they cannot."""
        length = tokens.shape[1]
        if length not in self._plans:
            blocks = [self.module(name) for name in self.blocks]
            last, ids = len(blocks) - 1, tokens[:1]
            with self._own_forward() as run:
                real = traced(blocks, partial(run, ids), self._as_loaded, last)
                blocks = [self.module(name) for name in self.blocks]
                empty = traced(blocks, partial(run, ids), real, last)
                varied = traced(blocks, partial(run, ids.roll(1, 1)), real, last)
                self._plans[length] = plan_of(real, empty, varied, length)
        return self._plans[length]

    def calls(self, tokens: torch.Tensor) -> list[Call]:
        """Return how each block is called on sequences of tokens [N, L]. Raises ModelError as `plan` does."""
        return self.plan(tokens).calls

    def width(self, tokens: torch.Tensor) -> int:
        """Return the width W of the states [L, W] of sequences of tokens [N, L]."""
        return self.plan(tokens).width

    def first_inputs(self, tokens: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the state [L, W] before the first block for each sequence of tokens [N, L]."""
        plan = self.plan(tokens)
        blocks = [self.module(name) for name in self.blocks]
        with self._own_forward() as run:
            for ids in torch.split(tokens, 1):
                yield plan.state(traced(blocks, partial(run, ids), plan.traces, plan.last))

    @contextmanager
    def _own_forward(self) -> Iterator[Callable[[torch.Tensor], object]]:
        """Return the model's own forward on tokens [1, L] without a cache, with everything around the blocks loaded."""
        folder, kind = self.checkpoint.folder, type(self.model).__name__

        @torch.no_grad()
        def run(ids: torch.Tensor) -> object:
            return self.model(input_ids=ids.to(self.device), use_cache=False)

        try:
            with surroundings(self):
                yield run
        except Unwalkable as error:
            raise ModelError(f"{folder}: {kind} cannot be run block by block: {error}") from None
        except (SqueezeError, OSError, MemoryError):
            raise
        except Exception as error:
            raise ModelError(f"{folder}: {kind} cannot be run block by block on tokens alone") from error

    def _as_loaded(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a block, which is loaded for that, and return its outputs."""
        name = self.blocks[number]
        stub = self.module(name).__dict__.pop("forward", None)
        try:
            return self.load(name)(*args, **kwargs)
        finally:
            self.release(name)
            if stub:
                self.module(name).forward = stub  # type: ignore[method-assign]

    def outer(self) -> list[str]:
        """Return the modules outside the blocks and nearest to the root: embeddings, norms, rotary angles."""
        around, _, _ = self.blocks[0].rpartition(".")
        parent, _, stack = around.rpartition(".")
        children = [f"{parent}.{name}" if parent else name for name, _ in self.module(parent).named_children()]
        return [name for name in children if name != (f"{parent}.{stack}" if parent else stack)]


def run_block(block: nn.Module, state: torch.Tensor, call: Call) -> torch.Tensor:
    """Return the state [L, W] after a block. Raises ModelError if the block cannot run."""
    with explained(type(block).__name__, Stop, OSError):  # a disk is full where inputs are kept
        return call.run(block, state)


def _rotated(limit: int, module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return rotate_blocks(args[0], limit), *args[1:]


class _WithoutNoise(TorchFunctionMode):
    """Do not sample initial values for weights that have no memory, which takes longer than all the rest."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.normal_ and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def _empty_model(checkpoint: Checkpoint) -> Any:
    """Return the model without weights, but with its buffers."""
    from accelerate import init_empty_weights  # it and transformers take seconds to import
    from transformers import AutoModelForCausalLM

    folder = checkpoint.folder
    config = load_config(folder)
    check_decoder(config, folder)
    if hasattr(config, "quantization_config"):  # of what the checkpoint reads as floats
        del config.quantization_config
    config.tie_word_embeddings = checkpoint.config.get(
        "tie_word_embeddings", getattr(config, "tie_word_embeddings", False)
    )
    with explained(folder):
        check_size(empty_model(config), checkpoint)
        with init_empty_weights(include_buffers=False), _WithoutNoise():
            model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=torch.float32, trust_remote_code=False
            )
    return model.eval()


def find_blocks(model: nn.Module) -> list[str]:
    """Return the names of the decoder's blocks: the longest list of modules that is in no other list.

    Lists of parts for vision or audio, which may be longer, are left out if transformers distinguishes the decoder.
    """
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    decoder = getattr(model, "get_decoder", lambda: model)()
    prefix = next((f"{name}." for name, module in model.named_modules() if name and module is decoder), "")
    lists = {name: m for name, m in lists.items() if name.startswith(prefix)} or lists
    outer = {name: m for name, m in lists.items() if not any(name.startswith(f"{other}.") for other in lists)}
    if not outer:
        raise ModelError(f"{type(model).__name__}: expected a decoder-only architecture with a list of blocks")
    name = max(outer, key=lambda key: len(outer[key]))
    return [f"{name}.{i}" for i in range(len(outer[name]))]


def _release_own(owner: nn.Module) -> None:
    for leaf, parameter in owner._parameters.items():
        if parameter is not None:
            owner._parameters[leaf] = nn.Parameter(parameter.data.to("meta"), requires_grad=False)


def _owner(module: nn.Module, key: str) -> tuple[nn.Module, str]:
    path, _, leaf = key.rpartition(".")
    return module.get_submodule(path), leaf
