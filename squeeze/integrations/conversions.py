"""Rules by which transformers renames, merges and splits the tensors of a checkpoint, computed before any is read.

transformers first renames a tensor, and then one WeightConverter may take it: experts are merged into one tensor,
others are split or transposed. `destinations` tells where each tensor goes. `FromPayloads` lets a converter take coded
tensors. `converters` adds what transformers lacks for experts that a folder stores one by one. For architectures in its
own table (Mixtral, Qwen3-MoE, DeepSeek-V3) nothing is missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn
from transformers.core_model_loading import (
    Concatenate,
    ConversionOps,
    Interleave,
    MergeModulelist,
    Transpose,
    WeightConverter,
    WeightTransform,
)

from squeeze.checkpoint.renaming import renamed
from squeeze.engine.expert_names import LEAVES
from squeeze.engine.experts import Fused, Layout
from squeeze.errors import SqueezeError

__all__ = ["Destination", "FromPayloads", "Payloads", "converters", "destinations", "places", "unmerged"]


@dataclass
class Destination:
    """A tensor of a model and the tensors of the checkpoint that it is made of.

    `sources` has names in the checkpoint by pattern of the converter. Without a converter it has one name, under the
    empty pattern.
    """

    converter: WeightConverter | None = None
    sources: dict[str, list[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(chain(*self.sources.values()))

    @property
    def casts(self) -> bool:
        """True if transformers casts the converter's inputs to the dtype of the model, as it does unless they are
        quantised.
        """
        steps = self.converter.operations if self.converter else []
        return not any(getattr(step, "hf_quantizer", None) for step in steps)

    @property
    def patterns(self) -> list[str]:
        """Patterns of the converter that have sources, in its order."""
        patterns = self.converter.source_patterns if self.converter else []
        return [pattern for pattern in patterns if pattern in self.sources]

    def experts(self) -> list[list[str]] | None:
        """Return the tensor names of each expert, in the order of their rows, if the converter merges experts into one
        tensor.
        """
        if not self.converter or self.patterns != self.converter.source_patterns:
            return None
        steps = [(type(step), getattr(step, "dim", None)) for step in self.converter.operations]
        merging = [(MergeModulelist, 0), (Concatenate, 1)][: 2 if len(self.patterns) > 1 else 1]
        lists = [self.sources[pattern] for pattern in self.patterns]
        if steps != merging or len(self.converter.target_patterns) > 1 or len({len(names) for names in lists}) > 1:
            return None
        return [list(names) for names in zip(*lists, strict=True)]

    def steps_per_expert(self, stored_shape: tuple[int, ...], shape: tuple[int, ...]) -> list[ConversionOps] | None:
        """Return the converter's steps if they transpose or interleave each expert of one stored tensor alike, else
        None.

        Args:
            stored_shape: Shape of the stored tensor.
            shape: Shape of the model's tensor.
        """
        if not self.converter or len(self.converter.target_patterns) > 1 or len(self.names) > 1 or len(shape) != 3:
            return None
        steps = self.converter.operations
        if any(type(step) not in (Transpose, Interleave) or not _dimensions(step) <= {1, 2} for step in steps):
            return None
        checked = [step for step in steps if getattr(step, "check_dims", False)]
        if not checked:
            return steps
        return None if len(steps) > 1 else [] if stored_shape == shape else [Transpose(1, 2)]


def _dimensions(step: Any) -> set[int]:
    return {step.dim0, step.dim1} if isinstance(step, Transpose) else {step.dim}


def destinations(
    model: nn.Module, names: Iterable[str], conversions: Sequence[WeightTransform]
) -> dict[str, Destination]:
    """Return the destination of each of a model's tensors, by the model's name.

    Args:
        model: The model, with or without weights.
        names: All tensors of the checkpoint.
        conversions: The conversions that transformers loads the model with.
    """
    found: dict[str, Destination] = {}
    for name, place in renamed(model, names, conversions).items():
        if place.claimed:
            destination = found.setdefault(place.target, Destination(place.converter))
            destination.sources.setdefault(place.pattern or "", []).append(name)
    return found


class Payloads(Protocol):
    """A holder of coded tensors, as a converter sees it."""

    def converted(self, target: str, payloads: dict[str, list[torch.Tensor]]) -> torch.Tensor | None:
        """Return the model's tensor if no more steps are needed; otherwise decode the payloads in place and return
        None.
        """

    def fail(self, error: SqueezeError) -> None:
        """Keep an error, to raise it after the model is loaded."""


class FromPayloads(ConversionOps):
    """A converter's steps, preceded by the decoding of coded tensors."""

    def __init__(self, payloads: Payloads, steps: list[ConversionOps]):
        self.payloads, self.steps = payloads, steps

    def __deepcopy__(self, memo: Any) -> FromPayloads:
        return FromPayloads(self.payloads, deepcopy(self.steps, memo))

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        try:
            whole = self.payloads.converted(kwargs["full_layer_name"], input_dict)
            if whole is not None:
                return {target_patterns[0]: whole}
            for step in self.steps:
                more = {"source_patterns": source_patterns, "target_patterns": target_patterns, **kwargs}
                input_dict = step.convert(input_dict, **more)
        except SqueezeError as error:  # transformers would tell it in its own words
            self.payloads.fail(error)
            return {}
        return input_dict


_NUMBER = re.compile(r"\.experts\.(\d+)\.")


class Join(ConversionOps):
    """A conversion that joins the parts of all experts into one tensor."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        parts = [input_dict[pattern] for pattern in source_patterns if pattern in input_dict]
        experts = zip(*(part if isinstance(part, list) else [part] for part in parts), strict=True)
        return {target_patterns[0]: torch.stack([self.layout.joined(expert) for expert in experts])}


def _layers(
    model: nn.Module, names: Iterable[str], conversions: Sequence[WeightTransform]
) -> Iterator[tuple[str, Layout, int]]:
    """Yield the path, layout and number of experts of each module whose experts are stored one by one and not
    merged."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        path, mark, rest = name.rpartition(".experts.")
        number, _, leaf = rest.partition(".")
        if mark and number.isdigit():
            found.setdefault(f"{path}.experts", {})[number] = f"{path}.experts.{number}.{leaf.partition('.')[0]}.weight"
    for path, module in model.named_modules():
        layout = Layout.of(module) if path in found else None
        if layout and not destinations(model, [next(iter(found[path].values()))], conversions):
            yield path, layout, len(found[path])


def converters(model: nn.Module, names: Iterable[str], conversions: Sequence[WeightTransform]) -> list[WeightConverter]:
    """Return the converters that `conversions` lack for a checkpoint with these tensor names."""
    found: dict[str, WeightConverter] = {}
    for path, layout, _ in _layers(model, names, conversions):
        suffix = ".".join(path.split(".")[-2:])
        for name, parts in layout.parts.items():
            target = f"{suffix}.{name}"
            sources = [f"{suffix}.*.{part}" for part in parts]
            found[target] = WeightConverter(sources, target, operations=[Join(layout)])
    return list(found.values())


def unmerged(model: nn.Module, names: Iterable[str]) -> list[Fused]:
    """Return the experts that transformers does not merge for a checkpoint with these tensor names."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    conversions = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    return [
        Fused(path, layout, {name: f"{path}.{name}" for name in layout.parts}, count)
        for path, layout, count in _layers(model, names, conversions)
    ]


def places(model: nn.Module, modules: Collection[str]) -> dict[str, dict[str, str]]:
    """Return where the modules of experts go in an engine.experts.Experts module that replaces the merged one.

    The result maps the path of a layer's experts to names by checkpoint module, such as "experts.3.up_proj".
    """
    from transformers.conversion_mapping import get_model_conversion_mapping

    names = [f"{module}.weight" for module in modules]
    conversions = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    found: dict[str, dict[str, str]] = {}
    for target, destination in destinations(model, names, conversions).items():
        path, _, name = target.rpartition(".")
        sources = destination.sources if name in LEAVES and destination.converter else {}
        for pattern, stored in sources.items():
            leaf = LEAVES[name][destination.patterns.index(pattern)]
            for one in stored:
                if number := _NUMBER.search(one):
                    found.setdefault(path, {})[one.removesuffix(".weight")] = f"experts.{number[1]}.{leaf}"
    for path, _, _ in _layers(model, names, conversions):
        inside = [module for module in modules if module.startswith(f"{path}.")]
        found.setdefault(path, {}).update((module, f"experts.{module.removeprefix(f'{path}.')}") for module in inside)
    return found
