"""Experts that a folder stores one by one, and transformers holds in one tensor without knowing how to merge them.

Where its own table of conversions has an architecture (Mixtral, Qwen3-MoE, DeepSeek-V3), nothing is left to do here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps, WeightConverter, WeightTransform

from squeeze.engine.experts import LEAVES, Fused, Layout
from squeeze.integrations.conversions import destinations

__all__ = ["converters", "places", "unmerged"]

_NUMBER = re.compile(r"\.experts\.(\d+)\.")


class Join(ConversionOps):
    """The parts of all experts to the tensor that holds them."""

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
    """Modules that hold experts which are stored one by one under their names and which `conversions` do not merge, and
    how many these are."""
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
    """Those that `conversions` lack for a checkpoint with tensors of such names."""
    found: dict[str, WeightConverter] = {}
    for path, layout, _ in _layers(model, names, conversions):
        suffix = ".".join(path.split(".")[-2:])
        for name, parts in layout.parts.items():
            target = f"{suffix}.{name}"
            sources = [f"{suffix}.*.{part}" for part in parts]
            found[target] = WeightConverter(sources, target, operations=[Join(layout)])
    return list(found.values())


def unmerged(model: nn.Module, names: Iterable[str]) -> list[Fused]:
    """The experts that transformers does not merge in a checkpoint with tensors of such names."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    conversions = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    return [
        Fused(path, layout, {name: f"{path}.{name}" for name in layout.parts}, count)
        for path, layout, count in _layers(model, names, conversions)
    ]


def places(model: nn.Module, modules: Collection[str]) -> dict[str, dict[str, str]]:
    """Where a checkpoint's modules are experts, by their names. By the path of the module that holds all experts of a
    layer: what each is called in an engine.experts.Experts in its place, as "experts.3.up_proj"."""
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
