"""A decoder of which only the parts at work are in memory: built by transformers without weights, filled by block.

Which tensor of the checkpoint belongs to which parameter is what transformers itself makes of their names. Fused
experts (one parameter of three dimensions for all) are taken apart (experts.py).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import check_decoder, check_size, empty_model, explained, load_config
from squeeze.checkpoint.renaming import renamed
from squeeze.engine.calibration import Stop
from squeeze.engine.experts import LEAVES, Experts, Fused, Layout, published
from squeeze.engine.surroundings import surroundings
from squeeze.engine.tracing import traced
from squeeze.engine.walking import Call, Plan, Unwalkable, plan_of
from squeeze.errors import FormatError, ModelError, SqueezeError
from squeeze.numerics.hadamard import turned

__all__ = ["Call", "Network", "find_blocks", "is_linear", "weight_of"]

_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.")


_LINEAR = ("Conv1D", "FalconLinear")  # classes of transformers with a forward of their own that is linear all the same


def is_linear(module: nn.Module) -> bool:
    """Return whether a module multiplies its inputs by its matrix: torch's Linear, or the Conv1D of GPT-2, which stores
    it transposed. Other classes below Linear, such as DeepSeek V4's of groups, multiply in ways of their own."""
    kind = type(module)
    return kind.__name__ in _LINEAR or getattr(kind, "forward", None) is nn.Linear.forward


def weight_of(module: nn.Module) -> torch.Tensor:
    """A view [O, I] of a linear module's weight."""
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    return weight if isinstance(module, nn.Linear) else weight.T


class Network:
    """`blocks` are the names of its decoder blocks; `sources` the checkpoint's tensor for each parameter."""

    takes_stored = False  # matrices in another form than dense

    def __init__(self, checkpoint: Checkpoint, device: str = "cpu") -> None:
        """Raises ModelError for an architecture that transformers cannot run, FormatError where a tensor is missing."""
        self.checkpoint, self.device = checkpoint, torch.device(device)
        self._plans: dict[int, Plan] = {}  # by the length of sequences
        self.model = self._made()
        self.fused: list[Fused] = []
        self._take_experts_apart(self._names())
        self.blocks = find_blocks(self.model)
        self._check_whole()
        self._turn_inputs()

    def _made(self) -> Any:
        """The model without weights."""
        if self.checkpoint.config.get("quantization_config") and not self.takes_stored:
            raise ModelError(f"{self.checkpoint.folder}: is quantised already; start from the original")
        return _empty_model(self.checkpoint)

    def module(self, name: str) -> nn.Module:
        module: nn.Module = self.model.get_submodule(name)
        return module

    def stored_name(self, name: str) -> str:
        """The checkpoint's name of a module that has a weight."""
        return self.sources.get(f"{name}.weight", f"{name}.weight").removesuffix(".weight")

    def check(self, tokens: torch.Tensor) -> None:
        """Raises SqueezeError where the network cannot run tokens [N, L]."""
        config = self.model.config.get_text_config()
        if tokens.numel() == 0:
            raise SqueezeError("there are no calibration tokens")
        if int(tokens.max()) >= config.vocab_size or int(tokens.min()) < 0:
            raise SqueezeError(f"calibration tokens lie outside the model's vocabulary of {config.vocab_size}")
        longest = getattr(config, "max_position_embeddings", None)
        if longest and 0 < longest < tokens.shape[1]:
            raise SqueezeError(f"sequences of {tokens.shape[1]} tokens are longer than the model's {longest}")

    def _names(self) -> dict[str, list[tuple[str, int]]]:
        """For each parameter the tensors that it is made of, each with the place of its pattern in the conversion."""
        sources: dict[str, list[tuple[str, int]]] = {}
        self.converted: set[str] = set()
        self.unclaimed: list[str] = []  # tensors that transformers leaves aside, such as layers that predict ahead
        for name, place in renamed(self.model, self.checkpoint.files).items():
            self.converted |= set(place.targets) if place.converter else set()
            number = place.converter.source_patterns.index(place.pattern) if place.converter else 0
            sources.setdefault(place.target, []).append((name, number))
            self.unclaimed += [] if place.claimed else [name]
        self.sources = {target: parts[0][0] for target, parts in sources.items() if len(parts) == 1}
        return sources

    def _take_experts_apart(self, names: dict[str, list[tuple[str, int]]]) -> None:
        for path, module in list(self.model.named_modules()):
            layout = Layout.of(module)
            if layout is None:
                continue
            parameters = dict(module.named_parameters(recurse=False))
            parts = {name: names.get(f"{path}.{name}", []) for name in parameters}
            if f"{path}.0.down_proj.weight" in names:  # as squeeze writes what was one tensor
                sources = self._numbered(path, names)
            elif all(self._is_whole(f"{path}.{name}", parts[name], parameters[name]) for name in parts):
                sources = self._one_by_one(path, layout, {name: entries[0][0] for name, entries in parts.items()})
            elif min(map(len, parts.values())) > 0 and not layout.biased:
                sources = self._merged(path, parts)
            else:
                continue
            self.model.set_submodule(path, Experts(module, layout))
            self.sources |= sources
        self._show_parts()

    def _numbered(self, path: str, names: dict[str, list[tuple[str, int]]]) -> dict[str, str]:
        """The tensors of experts whose names are those of the modules here."""
        own = re.compile(re.escape(path) + r"\.(\d+\..*)")
        found = {match[1]: parts[0][0] for name, parts in names.items() if (match := own.fullmatch(name))}
        return {f"{path}.experts.{part}": source for part, source in found.items()}

    def _is_whole(self, name: str, entries: list[tuple[str, int]], parameter: nn.Parameter) -> bool:
        """Whether the checkpoint, too, holds a parameter of all experts in one tensor."""
        if len(entries) != 1 or name in self.converted:
            return False
        return self.checkpoint.info(entries[0][0]).shape == tuple(parameter.shape)

    def _one_by_one(self, path: str, layout: Layout, stored: dict[str, str]) -> dict[str, str]:
        """The parts of tensors of all experts, which the checkpoint is to show."""
        first = next(iter(stored))
        count = self.checkpoint.info(stored[first]).shape[0]
        prefix = self._prefix(path, stored.values())
        called = published(self.checkpoint.config.get("model_type"), prefix)
        fused = Fused(prefix, layout, stored, count, called)
        self.fused.append(fused)
        for name in stored:
            self.sources.pop(f"{path}.{name}")
        return {f"{path}.experts.{part}": name for part, name in fused.modules.items()}

    def _prefix(self, path: str, names: Iterable[str]) -> str:
        """Return what parts of experts are called below, so that transformers finds them below the module `path`.

        names: of the tensors of all experts. Some have names of their own in files, which say nothing of the module:
        granitemoehybrid's experts are block_sparse_moe.input_linear.weight.
        """
        shared = _module_of(names)
        found = renamed(self.model, (f"{one}.0.down_proj.weight" for one in (shared, f"{shared}.experts", path)))
        fit = [name for name, place in found.items() if place.target == f"{path}.0.down_proj.weight"]
        return min(fit, key=len).removesuffix(".0.down_proj.weight") if fit else shared

    def _show_parts(self) -> None:
        """Let the checkpoint have the parts of tensors of all experts in their places."""
        if self.fused:
            hidden = {name for fused in self.fused for name in fused.stored.values()}
            views = {name: view for fused in self.fused for name, view in fused.views(self.checkpoint).items()}
            self.checkpoint = self.checkpoint.showing(views, hidden)

    def _merged(self, path: str, parts: dict[str, list[tuple[str, int]]]) -> dict[str, str]:
        """The tensors of experts that transformers merges."""
        sources = {}
        for name, entries in parts.items():
            for source, position in entries:
                expert = _EXPERT.match(source)
                if not expert:
                    raise ModelError(f"{self.checkpoint.folder}: tensor {source!r} is of no known expert")
                sources[f"{path}.experts.{expert[2]}.{LEAVES[name][position]}.weight"] = source
        return sources

    def _check_whole(self) -> None:
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        for name, parameter in self.model.named_parameters():
            if name in self.sources:
                stored = self.checkpoint.info(self.sources[name]).shape
                if stored != tuple(parameter.shape):
                    raise FormatError(
                        f"{self.checkpoint.folder}: tensor {self.sources[name]!r} has shape {list(stored)}, "
                        f"and config.json makes it {list(parameter.shape)}"
                    )
            elif name not in tied and name in self.converted:
                raise ModelError(
                    f"{self.checkpoint.folder}: transformers splits or joins stored tensors to make {name!r}: this "
                    "architecture cannot be compressed yet"
                )
            elif name not in tied:
                raise FormatError(f"{self.checkpoint.folder}: the checkpoint has no tensor for {name!r}")

    def _turn_inputs(self) -> None:
        """Modules multiply turned inputs where the checkpoint says so; calibration.Recorder notes these, too."""
        for name, module in self.model.named_modules():
            if is_linear(module) and (most := self.checkpoint.turns(self.stored_name(name))) > 1:
                module.turns = most  # type: ignore[assignment]
                module.register_forward_pre_hook(partial(_turned, most))

    def load(self, name: str, narrow: nn.Module | None = None) -> nn.Module:
        """Fill a module with its weights, in float32. narrow: a module in it whose weights keep their own type."""
        module = self.module(name)
        stored = {key: self._source(f"{name}.{key}") for key, _ in module.named_parameters()}
        tensors = self.checkpoint.load(dict.fromkeys(stored.values()))
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
        """The checkpoint's tensor for a parameter, or for the one that it is tied to."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        return self.sources[name] if name in self.sources else self.sources[tied[name]]

    def release(self, name: str) -> None:
        """Let a module's weights go."""
        for owner in self.module(name).modules():
            _release_own(owner)

    def above(self) -> list[str]:
        """The modules that the blocks are in, and the blocks."""
        stack, found = self.blocks[0].rpartition(".")[0], [""]
        for part in stack.split("."):
            found.append(f"{found[-1]}.{part}".lstrip("."))
        return [*found, *self.blocks]

    def load_own(self, name: str) -> None:
        """Fill a module with the weights that are its own, and of none of the modules in it."""
        module = self.module(name)
        for leaf, _ in list(module.named_parameters(recurse=False)):
            source = self._source(f"{name}.{leaf}".lstrip("."))
            value = self.checkpoint.load([source])[source].to(self.device, torch.float32)
            module._parameters[leaf] = nn.Parameter(value, requires_grad=False)

    def release_own(self, name: str) -> None:
        """Let the weights go that are a module's own."""
        _release_own(self.module(name))

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Let dense experts be one tensor again where they were."""
        for fused in self.fused:
            fused.restore(tensors)

    @cached_property
    def shared(self) -> set[str]:
        """The modules whose weight is another's, too: transformers ties the weights of some blocks."""
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        return {name.removesuffix(".weight") for name in [*tied, *tied.values()]}

    def load_stored(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Load tensors of the checkpoint as they are. Raises FormatError if one of a parameter is not of finite
        floats; those of buffers, such as tables of numbers, may be of any type."""
        names = list(names)
        others = self.checkpoint.load([name for name in names if name not in self._of_parameters], strict=False)
        return self.checkpoint.load(name for name in names if name in self._of_parameters) | others

    @cached_property
    def _of_parameters(self) -> set[str | None]:
        """The checkpoint's tensors that are parameters, and not buffers."""
        return {self.sources.get(name) for name, _ in self.model.named_parameters(remove_duplicate=False)}

    def tensors_of(self, name: str) -> dict[str, str]:
        """The checkpoint's tensor for each parameter and stored buffer below a module."""
        return {key: source for key, source in self.sources.items() if key.startswith(f"{name}.")}

    def plan(self, tokens: torch.Tensor) -> Plan:
        """How blocks run on sequences as long as those of tokens [N, L]. Raises ModelError if they cannot."""
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
        """How each block is called when sequences of tokens [N, L] run. Raises ModelError as `plan` does."""
        return self.plan(tokens).calls

    def width(self, tokens: torch.Tensor) -> int:
        """W of the states [L, W] of sequences of tokens [N, L]."""
        return self.plan(tokens).width

    def first_inputs(self, tokens: torch.Tensor) -> Iterator[torch.Tensor]:
        """The state [L, W] before the first block for each sequence of tokens [N, L]."""
        plan = self.plan(tokens)
        blocks = [self.module(name) for name in self.blocks]
        with self._own_forward() as run:
            for ids in torch.split(tokens, 1):
                yield plan.state(traced(blocks, partial(run, ids), plan.seen, plan.last))

    @contextmanager
    def _own_forward(self) -> Iterator[Callable[[torch.Tensor], object]]:
        """The model's own forward on tokens [1, L], without a cache; what surrounds the blocks is loaded meanwhile."""
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
        """What a block returns, which is loaded for that."""
        name = self.blocks[number]
        stub = self.module(name).__dict__.pop("forward", None)
        try:
            return self.load(name)(*args, **kwargs)
        finally:
            self.release(name)
            if stub:
                self.module(name).forward = stub  # type: ignore[method-assign]

    def outer(self) -> list[str]:
        """Modules before the blocks, the nearest to the root: embeddings, norms, rotary angles."""
        around, _, _ = self.blocks[0].rpartition(".")
        parent, _, stack = around.rpartition(".")
        children = [f"{parent}.{name}" if parent else name for name, _ in self.module(parent).named_children()]
        return [name for name in children if name != (f"{parent}.{stack}" if parent else stack)]


def run_block(block: nn.Module, state: torch.Tensor, call: Call) -> torch.Tensor:
    """The state [L, W] after a block. Raises ModelError where the block cannot run."""
    with explained(type(block).__name__, Stop, OSError):  # a disk is full where inputs are kept
        return call.run(block, state)


def _module_of(names: Iterable[str]) -> str:
    """Return the module that all of these tensors are below, as the checkpoint calls it."""
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*(name.split(".") for name in names), strict=False))
    return ".".join(parts[0] for parts in shared)


def _turned(most: int, module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return turned(args[0], most), *args[1:]


def _empty_model(checkpoint: Checkpoint) -> Any:
    """Without weights, but with its buffers."""
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
        with init_empty_weights(include_buffers=False):
            model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=torch.float32, trust_remote_code=False
            )
    return model.eval()


def find_blocks(model: nn.Module) -> list[str]:
    """The longest list of modules that lies in no other: of the decoder, where transformers tells it from parts that
    see or hear, which may have more blocks."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    decoder = getattr(model, "get_decoder", lambda: model)()
    prefix = next((f"{name}." for name, module in model.named_modules() if name and module is decoder), "")
    lists = {name: m for name, m in lists.items() if name.startswith(prefix)} or lists
    outer = {name: m for name, m in lists.items() if not any(name.startswith(f"{other}.") for other in lists)}
    if not outer:
        raise ModelError(f"{type(model).__name__}: has no list of blocks; decoder-only architectures are supported")
    name = max(outer, key=lambda key: len(outer[key]))
    return [f"{name}.{i}" for i in range(len(outer[name]))]


def _release_own(owner: nn.Module) -> None:
    for leaf, parameter in owner._parameters.items():
        if parameter is not None:
            owner._parameters[leaf] = nn.Parameter(parameter.data.to("meta"), requires_grad=False)


def _owner(module: nn.Module, key: str) -> tuple[nn.Module, str]:
    path, _, leaf = key.rpartition(".")
    return module.get_submodule(path), leaf
