"""The match of a checkpoint's tensors with a network's parameters, by the rules of transformers for their names.

Experts that the network holds in one tensor a layer are replaced by a module for each of them (experts.py), whose
parameters are matched one by one.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.renaming import renamed
from squeeze.engine.expert_names import LEAVES, published
from squeeze.engine.experts import Experts, Fused, Layout
from squeeze.errors import FormatError, ModelError

__all__ = ["Matched", "check_whole", "matched"]

_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.")
_Names = dict[str, list[tuple[str, int]]]  # by parameter, tensors with the place of their pattern in the conversion


@dataclass
class Matched:
    """A network and a checkpoint, matched by names.

    Attributes:
        checkpoint: with a view of each expert's matrices in place of the tensors that hold those of a whole layer.
        sources: the checkpoint's tensor for each parameter.
        fused: the tensors of whole layers of experts.
        converted: parameters that transformers splits or joins.
        unclaimed: tensors that transformers ignores, such as layers for multi-token prediction.
    """

    checkpoint: Checkpoint
    sources: dict[str, str] = field(default_factory=dict)
    fused: list[Fused] = field(default_factory=list)
    converted: set[str] = field(default_factory=set)
    unclaimed: list[str] = field(default_factory=list)


def matched(model: Any, checkpoint: Checkpoint) -> Matched:
    """Match the tensors of a checkpoint with the parameters of a model, whose fused experts are replaced in place.

    The weights of the model may be on the meta device. Raises ModelError if a tensor belongs to an unknown expert.
    """
    matching = _Matching(model, checkpoint)
    matching.replace_experts()
    return matching.found


class _Matching:
    """The matching in progress. `names` are the tensors of each parameter."""

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        self.model, self.found = model, Matched(checkpoint)
        self.names: _Names = {}
        for name, place in renamed(model, checkpoint.files).items():
            self.found.converted |= set(place.targets) if place.converter else set()
            number = place.converter.source_patterns.index(place.pattern) if place.converter else 0
            self.names.setdefault(place.target, []).append((name, number))
            self.found.unclaimed += [] if place.claimed else [name]
        self.found.sources = {target: parts[0][0] for target, parts in self.names.items() if len(parts) == 1}

    def replace_experts(self) -> None:
        """Put a module for each expert in place of those that hold all experts of a layer in one tensor."""
        names = self.names
        for path, module in list(self.model.named_modules()):
            layout = Layout.of(module)
            if layout is None:
                continue
            parameters = dict(module.named_parameters(recurse=False))
            parts = {name: names.get(f"{path}.{name}", []) for name in parameters}
            if f"{path}.0.down_proj.weight" in names:  # as squeeze writes what was one tensor
                sources = self._numbered(path)
            elif all(self._is_whole(f"{path}.{name}", parts[name], parameters[name]) for name in parts):
                sources = self._one_by_one(path, layout, {name: entries[0][0] for name, entries in parts.items()})
            elif min(map(len, parts.values())) > 0 and not layout.biased:
                sources = self._merged(path, parts)
            else:
                continue
            self.model.set_submodule(path, Experts(module, layout))
            self.found.sources |= sources
        self._show_parts()

    def _numbered(self, path: str) -> dict[str, str]:
        """Return the tensors of experts that are named as the modules here."""
        own = re.compile(re.escape(path) + r"\.(\d+\..*)")
        found = {match[1]: parts[0][0] for name, parts in self.names.items() if (match := own.fullmatch(name))}
        return {f"{path}.experts.{part}": source for part, source in found.items()}

    def _is_whole(self, name: str, entries: list[tuple[str, int]], parameter: nn.Parameter) -> bool:
        """Return whether the checkpoint, too, has a parameter of all experts in one tensor."""
        if len(entries) != 1 or name in self.found.converted:
            return False
        return self.found.checkpoint.info(entries[0][0]).shape == tuple(parameter.shape)

    def _one_by_one(self, path: str, layout: Layout, stored: dict[str, str]) -> dict[str, str]:
        """Return the sources of experts' parameters that the checkpoint has in tensors of all experts."""
        first = next(iter(stored))
        count = self.found.checkpoint.info(stored[first]).shape[0]
        prefix = self._prefix(path, stored.values())
        called = published(self.found.checkpoint.config.get("model_type"), prefix)
        fused = Fused(prefix, layout, stored, count, called)
        self.found.fused.append(fused)
        for name in stored:
            self.found.sources.pop(f"{path}.{name}")
        return {f"{path}.experts.{part}": name for part, name in fused.modules.items()}

    def _prefix(self, path: str, names: Iterable[str]) -> str:
        """Return the prefix of experts' parts with which transformers finds them below the module `path`.

        Some tensors of all experts have names in files that do not show the module: those of granitemoehybrid are
        block_sparse_moe.input_linear.weight.
        """
        shared = _module_of(names)
        found = renamed(self.model, (f"{one}.0.down_proj.weight" for one in (shared, f"{shared}.experts", path)))
        fit = [name for name, place in found.items() if place.target == f"{path}.0.down_proj.weight"]
        return min(fit, key=len).removesuffix(".0.down_proj.weight") if fit else shared

    def _show_parts(self) -> None:
        """Add views of the parts of tensors of all experts to the checkpoint."""
        found = self.found
        if found.fused:
            hidden = {name for fused in found.fused for name in fused.stored_names.values()}
            views = {name: view for fused in found.fused for name, view in fused.views(found.checkpoint).items()}
            found.checkpoint = found.checkpoint.showing(views, hidden)

    def _merged(self, path: str, parts: _Names) -> dict[str, str]:
        """Return the sources of experts' parameters that transformers merges."""
        sources = {}
        for name, entries in parts.items():
            for source, position in entries:
                expert = _EXPERT.match(source)
                if not expert:
                    raise ModelError(f"{self.found.checkpoint.folder}: tensor {source!r} is of no known expert")
                sources[f"{path}.experts.{expert[2]}.{LEAVES[name][position]}.weight"] = source
        return sources


def check_whole(model: Any, fit: Matched) -> None:
    """Check that every parameter of a model has a tensor of its shape, or is tied to one that has.

    Raises:
        FormatError: a tensor is missing or has another shape.
        ModelError: transformers splits or joins tensors to make a parameter.
    """
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    folder = fit.checkpoint.folder
    for name, parameter in model.named_parameters():
        if name in fit.sources:
            stored = fit.checkpoint.info(fit.sources[name]).shape
            if stored != tuple(parameter.shape):
                raise FormatError(
                    f"{folder}: tensor {fit.sources[name]!r}: expected shape {list(parameter.shape)} of config.json, "
                    f"got {list(stored)}"
                )
        elif name not in tied and name in fit.converted:
            raise ModelError(
                f"{folder}: transformers splits or joins stored tensors to make {name!r}: this architecture cannot be "
                "compressed yet"
            )
        elif name not in tied:
            raise FormatError(f"{folder}: the checkpoint has no tensor for {name!r}")


def _module_of(names: Iterable[str]) -> str:
    """Return the module that all of these tensors are below, in the checkpoint's names."""
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*(name.split(".") for name in names), strict=False))
    return ".".join(parts[0] for parts in shared)
