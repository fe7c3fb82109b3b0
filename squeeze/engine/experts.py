"""Experts that transformers holds in one tensor a layer: a module for each of their matrices.

If a checkpoint holds them in one tensor, too (gpt-oss), they are read from it one by one, and joined again if they stay
dense.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint, View
from squeeze.engine.calibration import Stage
from squeeze.engine.expert_names import LEAVES, is_expert, published

__all__ = ["Experts", "Fused", "Layout", "in_memory", "seeing_all", "taken_apart"]


@dataclass(frozen=True)
class Layout:
    """The layout of the matrices [O, I] of E experts in one tensor.

    Attributes:
        transposed: as [E, I, O].
        interleaved: the outputs of gate and up alternate.
        biased: there are biases [E, O].
    """

    transposed: bool
    interleaved: bool
    biased: bool

    @classmethod
    def of(cls, module: nn.Module) -> "Layout | None":
        """Return the layout of a module of transformers; None if it has no gated experts, or a layout that is not
        known."""
        ranks = {name: parameter.ndim for name, parameter in module.named_parameters(recurse=False)}
        biased = bool(getattr(module, "has_bias", False))
        wanted = dict.fromkeys(LEAVES, 3) | (dict.fromkeys((f"{name}_bias" for name in LEAVES), 2) if biased else {})
        if ranks != wanted or not getattr(module, "has_gate", False) or getattr(module, "has_post_expert_norm", False):
            return None
        return cls(bool(module.is_transposed), not module.is_concatenated, biased)

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """The parts that an expert has in each tensor of all experts: "gate_proj.weight"."""
        parts = {name: tuple(f"{leaf}.weight" for leaf in leaves) for name, leaves in LEAVES.items()}
        if self.biased:
            parts |= {f"{name}_bias": tuple(f"{leaf}.bias" for leaf in leaves) for name, leaves in LEAVES.items()}
        return parts

    def sizes(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a part of an expert, given that of the tensor `name` of all experts."""
        sizes = list(shape[1:])
        if self.transposed:
            sizes.reverse()
        sizes[0] //= len(self.parts[name])
        return tuple(sizes)

    def shapes(self, path: str, module: nn.Module) -> dict[str, tuple[int, ...]]:
        """Return the shapes of each expert's matrices in the module `path`, by their names as single matrices."""
        whole = {name: tuple(module.get_parameter(name).shape) for name in LEAVES}
        return {
            f"{path}.{number}.{leaf}": self.sizes(name, whole[name])
            for name, leaves in LEAVES.items()
            for leaf in leaves
            for number in range(whole[name][0])
        }

    def taken(self, name: str, number: int, entry: torch.Tensor) -> torch.Tensor:
        """Return part `number` of an expert in the tensor `name`, given the expert's entry in it."""
        count, entry = len(self.parts[name]), entry.T if self.transposed and entry.ndim == 2 else entry
        if self.interleaved:
            return entry[number::count].contiguous()
        size = len(entry) // count
        return entry[number * size : (number + 1) * size].contiguous()

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return an expert's entry from all its parts; the inverse of `taken`."""
        entry = torch.stack(list(parts), 1).flatten(0, 1) if self.interleaved else torch.cat(list(parts))
        return entry.T if self.transposed and entry.ndim == 2 else entry


@dataclass(frozen=True)
class Fused:
    """The tensors of all experts of a layer in a checkpoint.

    Attributes:
        prefix: of the names of an expert's parts.
        layout: of the tensors.
        stored_names: names of the tensors in the checkpoint, by the module's names.
        count: number of experts.
        called: names of parts with * for the expert's number, if they are not PREFIX.*.PART.
    """

    prefix: str
    layout: Layout
    stored_names: Mapping[str, str]
    count: int
    called: Mapping[str, str] = field(default_factory=dict)

    def names(self, name: str) -> list[list[str]]:
        """Return the names of the parts of the tensor `name`, expert by expert."""
        patterns = [self.called.get(part, f"{self.prefix}.*.{part}") for part in self.layout.parts[name]]
        return [[pattern.replace("*", str(number)) for pattern in patterns] for number in range(self.count)]

    @property
    def modules(self) -> dict[str, str]:
        """The names of the parts of experts, by their names in `Experts`: "3.up_proj.weight"."""
        return {
            f"{number}.{part}": name
            for whole, parts in self.layout.parts.items()
            for number, names in enumerate(self.names(whole))
            for part, name in zip(parts, names, strict=True)
        }

    @property
    def all_names(self) -> list[str]:
        return [part for name in self.layout.parts for parts in self.names(name) for part in parts]

    def views(self, checkpoint: Checkpoint) -> dict[str, View]:
        """Return a view of every part of every expert, by name."""
        views: dict[str, View] = {}
        for name, stored in self.stored_names.items():
            info = checkpoint.info(stored)
            shape = self.layout.sizes(name, info.shape)
            for expert, parts in enumerate(self.names(name)):
                for number, part in enumerate(parts):
                    views[part] = View(part, info.dtype, shape, self._reading(checkpoint, name, expert, number))
        return views

    def _reading(
        self, checkpoint: Checkpoint, name: str, expert: int, number: int
    ) -> Callable[[int | None], torch.Tensor]:
        def read(index: int | None) -> torch.Tensor:
            assert index is None
            return self.layout.taken(name, number, checkpoint.entry(self.stored_names[name], expert))

        return read

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Replace the parts of experts by the tensors of all experts, if every part is dense (FP8 has scales)."""
        if not all(part in tensors and _is_dense(tensors[part]) for part in self.all_names):
            return
        for name, stored in self.stored_names.items():
            entries = [self.layout.joined([tensors.pop(part) for part in parts]) for parts in self.names(name)]
            tensors[stored] = torch.stack(entries)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.itemsize > 1


def taken_apart(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with a view of every expert's matrices, if it holds those of a layer in one tensor.

    The layout is that of transformers' own classes, gate before up: PREFIX.experts.gate_up_proj [E, 2 I, H] and
    PREFIX.experts.down_proj [E, H, I].
    """
    layout = Layout(transposed=False, interleaved=False, biased=False)
    views: dict[str, View] = {}
    hidden: set[str] = set()
    for stored in checkpoint.files:
        prefix, _, name = stored.rpartition(".")
        shape = checkpoint.info(stored).shape
        if prefix.endswith(".experts") and name in LEAVES and len(shape) == 3:
            called = published(checkpoint.config.get("model_type"), prefix)
            views |= Fused(prefix, layout, {name: stored}, shape[0], called).views(checkpoint)
            hidden.add(stored)
    return checkpoint.showing(views, hidden) if views else checkpoint


class Expert(nn.Module):
    def __init__(self, inputs: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(inputs, hidden, bias=bias)
        self.up_proj = nn.Linear(inputs, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, inputs, bias=bias)


class Experts(nn.Module):
    """A fused experts module of transformers with a linear module for each matrix.

    Attributes:
        seeing_all: numbers of experts that run on all tokens, for statistics of their inputs; that changes no output.
        watch: called for each expert with tokens: watch(number, token [T], weight [T], inner [T, I], out [T, H]), where
            `inner` are the inputs of its last matrix.
    """

    fused: Any

    def __init__(self, fused: nn.Module, layout: Layout) -> None:
        super().__init__()
        count, *sizes = fused.down_proj.shape  # type: ignore[misc]
        inputs, hidden = reversed(sizes) if layout.transposed else sizes
        with torch.device("meta"):
            self.experts = nn.ModuleList(Expert(inputs, hidden, layout.biased) for _ in range(count))
        self.layout = layout
        self.__dict__["fused"] = fused  # its gate and activation are used; not a child module
        self.seeing_all: frozenset[int] = frozenset()
        self.watch: Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None] | None = None

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Run the chosen experts.

        Args:
            hidden: [T, H].
            chosen: numbers of experts [T, K].
            weights: of the chosen experts [T, K].
        """
        out = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            if number in self.seeing_all:
                inner, y = (values[token] for values in self.run(expert, hidden))
            elif len(token):
                inner, y = self.run(expert, hidden[token])
            else:
                continue
            if self.watch:
                self.watch(number, token, weights[token, rank], inner, y)
            y = y * weights[token, rank, None]
            out.index_add_(0, token, y.to(out.dtype))
        return out

    @classmethod
    def filled(cls, fused: nn.Module, layout: Layout) -> "Experts":
        """Return the module with the weights of a module of transformers, which loses them."""
        module, whole = cls(fused, layout), {name: fused.get_parameter(name) for name in layout.parts}
        for name, parts in layout.parts.items():
            entries = whole.pop(name).detach()
            delattr(fused, name)
            for expert, entry in zip(module.experts, entries, strict=True):
                for number, part in enumerate(parts):
                    leaf, _, kind = part.partition(".")
                    value = nn.Parameter(layout.taken(name, number, entry), requires_grad=False)
                    setattr(expert.get_submodule(leaf), kind, value)
        return module

    def run(self, expert: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs [T, I] of an expert's last matrix, and its outputs [T, H], for tokens x [T, H]."""
        both = [expert.gate_proj(x), expert.up_proj(x)]  # type: ignore[operator]
        both_at_once = torch.stack(both, -1).flatten(-2) if self.layout.interleaved else torch.cat(both, -1)
        inner: torch.Tensor = self.fused._apply_gate(both_at_once)
        return inner, expert.down_proj(inner)  # type: ignore[operator]


@contextmanager
def seeing_all(block: nn.Module, names: Sequence[str] | None = None) -> Iterator[None]:
    """Let experts of a block run on all tokens in the `with` block: those of the named modules, or every expert."""
    layers: dict[str, Any] = {name: one for name, one in block.named_modules() if isinstance(one, Experts)}
    try:
        for layer, module in layers.items():
            inside = range(len(module.experts))
            if names is None:
                module.seeing_all = frozenset(inside)
            else:
                prefix = f"{layer}.experts."
                numbers = [name.removeprefix(prefix).partition(".")[0] for name in names if name.startswith(prefix)]
                module.seeing_all = frozenset(map(int, numbers))
        yield
    finally:
        for module in layers.values():
            module.seeing_all = frozenset()


def in_memory(block: nn.Module, stage: Stage) -> Iterator[Stage]:
    """Split a stage of experts so that the Hessians of a part take at most half the memory of the block's weights."""
    if not is_expert(stage.groups[0][0]):
        yield stage
        return
    room = sum(parameter.nbytes for parameter in block.parameters()) // 2
    part: list[tuple[str, ...]] = []
    offset = 0
    for group in stage.groups:
        inputs: int = block.get_submodule(group[0]).in_features  # type: ignore[assignment]
        size = 4 * inputs**2
        if part and offset + size > room:
            yield Stage(tuple(part), stage.repeated)
            part, offset = [], 0
        part.append(group)
        offset += size
    yield Stage(tuple(part), stage.repeated)
