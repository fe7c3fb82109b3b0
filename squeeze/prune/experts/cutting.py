"""A checkpoint with fewer experts: a view of another one, whose config.json has fewer.

What has to be cut is found by building the model twice without weights: a tensor outside the experts whose shape
differs is cut along that dimension. So no architecture needs code here.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from squeeze.checkpoint.checkpoint import DTYPES, Checkpoint, View
from squeeze.checkpoint.pretrained import dense_model, explained
from squeeze.engine.experts import Fused
from squeeze.engine.network import Network
from squeeze.errors import ModelError
from squeeze.prune.experts.counts import mixtures

__all__ = ["Layers", "Mixture"]

_TYPES = {name: dtype for dtype, name in DTYPES.items()}


@dataclass
class Mixture:
    """A layer of experts.

    Attributes:
        path: of its module in the network.
        cut: dimension along which each tensor outside the experts is cut, by the checkpoint's name.
        kept: numbers of the experts that stay.
        parts: new matrices of kept experts, by their place among them and their name in an expert.
    """

    path: str
    cut: dict[str, int] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    parts: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)


class Layers:
    """The mixtures of a checkpoint, and the views of what is left of them; a view is of the experts kept at the time
    when it is read."""

    def __init__(self, network: Network, count: int, folder: Path) -> None:
        """Find what is cut.

        Args:
            network: the network with all experts.
            count: experts that stay in each layer.
            folder: a folder with the config.json of the result.

        Raises:
            ModelError: the architecture has tensors that cannot be cut.
        """
        self.network, self.count = network, count
        self.mixtures = {path: Mixture(path, kept=list(range(count))) for path in mixtures(network)}
        self.size = {len(one.experts) for one in mixtures(network).values()}.pop()
        self._find_cuts(folder)

    def in_block(self, name: str) -> Mixture | None:
        """Return the mixture in a block. Raises ModelError if there are several."""
        found = [one for path, one in self.mixtures.items() if path.startswith(f"{name}.")]
        if len(found) > 1:
            raise ModelError(f"{self.network.checkpoint.folder}: {name} has several layers of experts: not supported")
        return found[0] if found else None

    def _find_cuts(self, folder: Path) -> None:
        source = self.network.checkpoint.folder
        with explained(source):
            before, after = (dense_model(one).state_dict() for one in (source, folder))
        stray = f"{source}: {type(self.network.model).__name__}"
        for name, tensor in before.items():
            owner = next((one for one in self.mixtures.values() if name.startswith(f"{one.path}.")), None)
            if owner:
                continue
            near = self._near(name)
            if name not in after:
                raise ModelError(f"{stray} loses {name} with fewer experts: not supported")
            if near and not tensor.is_floating_point():
                raise ModelError(f"{stray} routes by a table of numbers of experts, {name}: not supported")
            if tensor.shape == after[name].shape:
                continue
            differ = [axis for axis, size in enumerate(tensor.shape) if size != after[name].shape[axis]]
            lost = tensor.shape[differ[0]] - after[name].shape[differ[0]]
            if near is None or len(differ) != 1 or lost != self.size - self.count or name not in self.network.sources:
                raise ModelError(f"{stray} has a tensor that cannot be cut to fewer experts, {name}: not supported")
            near.cut[self.network.sources[name]] = differ[0]

    def _near(self, name: str) -> Mixture | None:
        """Return the mixture of the block that a parameter is in."""
        block = next((one for one in self.network.blocks if name.startswith(f"{one}.")), None)
        return None if block is None else self.in_block(block)

    def checkpoint(self, folder: Path) -> Checkpoint:
        """Return the checkpoint of the result, with its config.json in `folder`."""
        whole, views, hidden = self.network.checkpoint, dict[str, View](), set(self.network.unclaimed)
        for mixture in self.mixtures.values():
            for name, axis in mixture.cut.items():
                views[name] = self._cut(mixture, name, axis)
            fused = self._fused(mixture)
            if fused:
                hidden |= set(fused.all_names)
                views |= dict(self._whole(mixture, fused))
            else:
                hidden |= {source for _, source in self._sources(mixture, self.size)}
                views |= {name: self._single(mixture, part, name) for part, name in self._sources(mixture, self.count)}
        files = {name: file for name, file in whole.files.items() if name not in hidden}
        return Checkpoint(folder, {**files, **views})

    def _fused(self, mixture: Mixture) -> Fused | None:
        sources = {name for _, name in self._sources(mixture, 1)}
        return next((one for one in self.network.fused if sources <= set(one.all_names)), None)

    def _sources(self, mixture: Mixture, count: int) -> Iterator[tuple[tuple[int, str], str]]:
        """Yield the name of each part of the first experts, with the expert and the part's name in it."""
        own = re.compile(re.escape(mixture.path) + r"\.experts\.(\d+)\.(.*)")
        for name, source in self.network.sources.items():
            if (match := own.fullmatch(name)) and int(match[1]) < count:
                yield (int(match[1]), match[2]), source

    def _cut(self, mixture: Mixture, name: str, axis: int) -> View:
        info, checkpoint = self.network.checkpoint.info(name), self.network.checkpoint
        shape = list(info.shape)
        shape[axis] -= self.size - self.count

        def read(index: int | None) -> torch.Tensor:
            extra = range(self.size, info.shape[axis])
            values = checkpoint.load([name], strict=False)[name]
            values = values.index_select(axis, torch.tensor([*mixture.kept, *extra]))
            return values if index is None else values[index]

        return View(name, info.dtype, tuple(shape), read)

    def _single(self, mixture: Mixture, part: tuple[int, str], name: str) -> View:
        info = self.network.checkpoint.info(name)

        def read(index: int | None) -> torch.Tensor:
            values = self._part(mixture, *part, _TYPES.get(info.dtype))
            return values if index is None else values[index]

        return View(name, info.dtype, info.shape, read)

    def _part(self, mixture: Mixture, place: int, leaf: str, dtype: torch.dtype | None) -> torch.Tensor:
        """Return a part of the kept expert at a place."""
        if (place, leaf) in mixture.parts:
            return mixture.parts[place, leaf].to(dtype)
        source = self.network.sources[f"{mixture.path}.experts.{mixture.kept[place]}.{leaf}"]
        return self.network.checkpoint.load([source])[source]

    def _whole(self, mixture: Mixture, fused: Fused) -> Iterator[tuple[str, View]]:
        """Yield views of the tensors that hold all kept experts."""
        original = self.network.checkpoint
        for name, stored in fused.stored_names.items():
            infos = [original.info(part) for part in fused.names(name)[0]]
            entry = fused.layout.joined([torch.empty(info.shape, device="meta") for info in infos]).shape
            read = partial(self._entries, mixture, fused.layout.parts[name], fused, _TYPES.get(infos[0].dtype))
            yield stored, View(stored, infos[0].dtype, (self.count, *entry), read)

    def _entries(
        self, mixture: Mixture, leaves: Sequence[str], fused: Fused, dtype: torch.dtype | None, index: int | None
    ) -> torch.Tensor:
        places = range(self.count) if index is None else [index]
        entries = [fused.layout.joined([self._part(mixture, one, leaf, dtype) for leaf in leaves]) for one in places]
        return torch.stack(entries) if index is None else entries[0].contiguous()
