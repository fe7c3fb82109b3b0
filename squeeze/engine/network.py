"""A model of which only the parts in use are in memory: built by transformers without weights, filled block by block.

sources.py matches the tensors of the checkpoint with parameters.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.diffusion import DiffusionConfig
from squeeze.checkpoint.pretrained import check_size, class_of, empty_model, explained, is_causal, load_config
from squeeze.engine.calibration import Stop
from squeeze.engine.inputs import IDS, Inputs, Samples, arguments, check_samples, spread, varied
from squeeze.engine.sources import check_whole, matched
from squeeze.engine.stacks import around, find_blocks, find_stacks, is_linear, running_order
from squeeze.engine.surroundings import surroundings
from squeeze.engine.tracing import traced
from squeeze.engine.walking import Call, Plan, Unwalkable, plan_of
from squeeze.errors import ModelError, SqueezeError
from squeeze.numerics.hadamard import rotate_blocks

__all__ = ["Call", "Network", "find_blocks", "is_linear", "run_block", "weight_of"]


def weight_of(module: nn.Module) -> torch.Tensor:
    """Return a view [O, I] of a linear module's weight, or of an embedding's table."""
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    return weight if isinstance(module, nn.Linear | nn.Embedding) else weight.T


class Network:
    """A model whose modules are loaded from a checkpoint when they are needed.

    Attributes:
        checkpoint: with a view of each expert's matrices.
        model: the network without weights.
        stacks: names of the blocks in each of its lists of blocks; `settle` puts them in the order of the forward.
        unreached: names of blocks that the calibration does not reach.
        remarks: on stacks that do not run block by block.
        eager: whether all modules around the blocks are loaded before a forward, since some are read without running.
        sources: the checkpoint's tensor for each parameter.
        changed: values that are loaded in place of the checkpoint's, by its tensors' names.
        compressed: function that returns the weights of a block that is compressed already, by name; None for the
            original network.
    """

    takes_stored = False  # whether matrices may be quantised, sparse or factorised

    def __init__(self, checkpoint: Checkpoint, device: str = "cpu") -> None:
        """Build the network. Raises ModelError if transformers cannot run it, FormatError if a tensor is missing."""
        self.checkpoint, self.device = checkpoint, torch.device(device)
        self._plans: dict[tuple[str, Any], Plan] = {}  # by the stack's first block and the shape of inputs
        self.compressed: Callable[[str], Mapping[str, torch.Tensor]] | None = None
        self.unreached: list[str] = []
        self.remarks: list[str] = []
        self.eager = False
        self.model = self._instantiate()
        found = matched(self.model, self.checkpoint)  # which `_instantiate` may have replaced
        self.checkpoint, self.sources = found.checkpoint, found.sources
        self.fused, self.unclaimed = found.fused, found.unclaimed
        self.changed: dict[str, torch.Tensor] = {}
        self.is_causal = is_causal(self.model.config)
        self.stacks = [find_blocks(self.model)] if self.is_causal else find_stacks(self.model)
        self._listed = tuple(f"{name}." for name in self.blocks)
        check_whole(self.model, found)
        self._turn_inputs()

    def _instantiate(self) -> Any:
        """Return the model without weights."""
        if self.checkpoint.config.get("quantization_config") and not self.takes_stored:
            raise ModelError(f"{self.checkpoint.folder}: is quantised already: use the original")
        return _empty_model(self.checkpoint)

    @property
    def blocks(self) -> list[str]:
        """Names of all blocks, stack by stack."""
        return [name for stack in self.stacks for name in stack]

    def is_inside(self, name: str) -> bool:
        """Return whether a module is in a list of blocks, even if the module around the list runs as one block."""
        return name.startswith(self._listed)

    def module(self, name: str) -> nn.Module:
        module: nn.Module = self.model.get_submodule(name)
        return module

    def stored_name(self, name: str) -> str:
        """Return the checkpoint's name of a module that has a weight."""
        return self.sources.get(f"{name}.weight", f"{name}.weight").removesuffix(".weight")

    def check(self, inputs: Inputs) -> None:
        """Raise SqueezeError if the network cannot run tokens [N, L] or samples."""
        if len(inputs) == 0:
            raise SqueezeError("expected calibration tokens, got none")
        if isinstance(inputs, Samples):
            check_samples(self.model, inputs)
            if IDS not in inputs.samples[0]:
                return
        config = self.model.config.get_text_config()
        ids = inputs if isinstance(inputs, torch.Tensor) else torch.cat([sample[IDS] for sample in inputs])
        size = getattr(config, "vocab_size", None)
        if ids.numel() == 0:
            raise SqueezeError("expected calibration tokens, got none")
        if size and (int(ids.max()) >= size or int(ids.min()) < 0):
            raise SqueezeError(f"expected calibration tokens from 0 to {size - 1}, the model's vocabulary")
        longest = getattr(config, "max_position_embeddings", None)
        if longest and 0 < longest < ids.shape[1]:
            raise SqueezeError(f"sequences of {ids.shape[1]} tokens are longer than the model's {longest}")

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
        for key, value in self.compressed(name).items() if self.compressed else ():
            owner, leaf = _owner(self.model, key)
            owner._parameters[leaf] = nn.Parameter(value.to(self.device, torch.float32), requires_grad=False)
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
        """Return the modules that contain blocks, and the blocks."""
        found = {""}
        for name in self.blocks:
            parts = name.split(".")
            found |= {".".join(parts[:count]) for count in range(1, len(parts))}
        return [*sorted(found), *self.blocks]

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

    def settle(self, inputs: Inputs) -> None:
        """Put the stacks in the order in which the forward runs them on these inputs, and see that each can run.

        Stacks that it does not reach become `unreached`. A stack of a model that is no decoder, and that cannot run
        block by block, becomes one block, the module around it, with a remark. If there is no such module, or it
        holds other stacks, each block becomes a stack of its own, for whose inputs the model runs from its beginning.

        Raises:
            ModelError: a stack cannot run block by block, and is not inside a module that can run as a block.
        """
        if self.is_causal:
            return
        try:
            self._settle(inputs)
        except ModelError as error:
            if self.eager or isinstance(error.__cause__, Unwalkable):
                raise
            self.eager = True
            self._settle(inputs)

    def _settle(self, inputs: Inputs) -> None:
        known = self.stacks
        if len(known) > 1:
            self._put_in_order(inputs)
        number = 0
        while number < len(self.stacks):
            stack = self.stacks[number]
            try:
                self.plan(inputs, number)
                number += 1
            except ModelError as error:
                whole = around(stack, known)
                if not isinstance(error.__cause__, Unwalkable):
                    raise
                if whole is not None:
                    self.remarks.append(f"{whole[0]} runs as one block: {error.__cause__}")
                    self.stacks[number] = whole
                elif self.is_causal or len(stack) == 1:
                    raise
                else:
                    where = stack[0].rpartition(".")[0]
                    self.remarks.append(f"each block of {where} runs from the model's inputs: {error.__cause__}")
                    self.stacks[number : number + 1] = [[name] for name in stack]
                    self._put_in_order(inputs)

    def _put_in_order(self, inputs: Inputs) -> None:
        """Put the stacks in the order in which a forward reaches them, and note those that it does not reach."""
        known = self.stacks
        with self._own_forward([]) as run:
            self.stacks = running_order(self.model, known, partial(run, next(spread(inputs))))
        self.unreached += [name for stack in known if stack not in self.stacks for name in stack]

    def plan(self, inputs: Inputs, stack: int = 0) -> Plan:
        """Return how the blocks of a stack run on tokens [N, L] or samples. Raises ModelError if they cannot."""
        names, first = self.stacks[stack], next(spread(inputs))
        key = names[0], tuple((name, tuple(value.shape)) for name, value in first.items())
        if key not in self._plans:
            blocks = [self.module(name) for name in names]
            last = len(blocks) - 1
            with self._own_forward(names) as run:
                loaded = partial(self._as_loaded, names)
                real = traced(blocks, partial(run, first), loaded, last, ends=self.is_causal)
                blocks = [self.module(name) for name in names]
                empty = traced(blocks, partial(run, first), real, last)
                other = traced(blocks, partial(run, varied(inputs)), real, last)
                length = inputs.shape[1] if isinstance(inputs, torch.Tensor) else None
                self._plans[key] = plan_of(real, empty, other, length)
        return self._plans[key]

    def calls(self, inputs: Inputs, stack: int = 0) -> list[Call]:
        """Return how each block of a stack is called on tokens [N, L] or samples. Raises ModelError as `plan` does."""
        return self.plan(inputs, stack).calls

    def width(self, inputs: Inputs, stack: int = 0) -> int:
        """Return the width W of a stack's states [L, W]."""
        return self.plan(inputs, stack).width

    def length(self, inputs: Inputs, stack: int = 0) -> int:
        """Return the length L of a stack's states [L, W]."""
        return self.plan(inputs, stack).length

    def first_inputs(self, inputs: Inputs, stack: int = 0) -> Generator[torch.Tensor]:
        """Yield the state [L, W] before the first block of a stack for each sequence of tokens [N, L], or sample."""
        plan = self.plan(inputs, stack)
        blocks = [self.module(name) for name in self.stacks[stack]]
        with self._own_forward(self.stacks[stack]) as run:
            for sample in spread(inputs):
                yield plan.state(traced(blocks, partial(run, sample), plan.traces, plan.last))

    @contextmanager
    def original(self) -> Iterator[None]:
        """Leave out what is compressed already in the `with` block."""
        compressed, changed = self.compressed, self.changed
        self.compressed, self.changed = None, {}
        try:
            yield
        finally:
            self.compressed, self.changed = compressed, changed

    @contextmanager
    def _own_forward(self, stack: list[str]) -> Iterator[Callable[[Mapping[str, torch.Tensor]], object]]:
        """Return the model's own forward on a sample without a cache, with everything around a stack's blocks
        loaded."""
        folder, kind = self.checkpoint.folder, type(self.model).__name__

        @torch.no_grad()
        def run(sample: Mapping[str, torch.Tensor]) -> object:
            return self.model(**arguments(self.model, sample, self.device))

        try:
            with surroundings(self, stack):
                yield run
        except Unwalkable as error:
            raise ModelError(f"{folder}: {kind} cannot be run block by block: {error}") from error
        except (SqueezeError, OSError, MemoryError):
            raise
        except Exception as error:
            named = "tokens alone" if self.is_causal else "these inputs"
            raise ModelError(f"{folder}: {kind} cannot be run block by block on {named}") from error

    def _as_loaded(self, names: list[str], number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a block, which is loaded for that, and return its outputs."""
        name = names[number]
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

    folder = checkpoint.folder
    config = load_config(folder)
    if hasattr(config, "quantization_config"):  # of what the checkpoint reads as floats
        del config.quantization_config
    config.tie_word_embeddings = checkpoint.config.get(
        "tie_word_embeddings", getattr(config, "tie_word_embeddings", False)
    )
    for part in (config, *(getattr(config, name) for name in config.sub_configs)):
        if getattr(part, "use_cache", False):
            part.use_cache = False
    with explained(folder):
        check_size(empty_model(config), checkpoint)
        if isinstance(config, DiffusionConfig):
            with _WithoutNoise():
                return config.new(buffers=False).eval()
        with init_empty_weights(include_buffers=False), _WithoutNoise():
            model = class_of(config)._from_config(config, dtype=torch.float32)
    return model.eval()


def _release_own(owner: nn.Module) -> None:
    for leaf, parameter in owner._parameters.items():
        if parameter is not None:
            owner._parameters[leaf] = nn.Parameter(parameter.data.to("meta"), requires_grad=False)


def _owner(module: nn.Module, key: str) -> tuple[nn.Module, str]:
    path, _, leaf = key.rpartition(".")
    return module.get_submodule(path), leaf
