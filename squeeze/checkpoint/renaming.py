"""Names of a checkpoint's tensors in transformers, which often differ from the names of a model's parameters.

transformers renames every tensor by the rules of its architecture; then at most one converter takes it, which merges,
splits or transposes tensors. Both directions of a name come from here, so that no prefix is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import nn

__all__ = ["Fit", "Renamed", "fit_of", "model_modules", "renamed", "transposed"]


@dataclass(frozen=True)
class Renamed:
    """A tensor of a checkpoint in a model.

    Attributes:
        target: its name in the model, or the first of several.
        pattern: source pattern of the converter that takes it, or None.
        converter: that converter; None if the tensor is only renamed.
        claimed: whether the model has `target`.
    """

    target: str
    pattern: str | None
    converter: Any
    claimed: bool

    @property
    def targets(self) -> list[str]:
        """Every tensor of the model that is made of this one, if the model has them."""
        patterns = self.converter.target_patterns if self.converter else [""]
        return [self.target.replace(patterns[0], pattern) for pattern in patterns]


@dataclass(frozen=True)
class Fit:
    """The differences between a checkpoint and a model that transformers itself would report.

    Attributes:
        unclaimed: tensors of the checkpoint that are ignored.
        missing: tensors of the model that are filled with random numbers.
    """

    unclaimed: frozenset[str]
    missing: frozenset[str]


def renamed(model: nn.Module, names: Iterable[str], conversions: Sequence[Any] | None = None) -> dict[str, Renamed]:
    """Return the name and converter of each tensor when transformers loads a checkpoint into a model.

    Args:
        model: the model, whose weights may be on the meta device.
        names: all tensors of the checkpoint; some rules depend on which others there are.
        conversions: the rules; default: those of transformers for a dense checkpoint of the model.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    if not hasattr(model, "base_model_prefix"):  # of diffusers, which renames nothing
        conversions = ()
    elif conversions is None:
        conversions = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    steps = deepcopy(list(conversions))  # they note what they matched
    renamings = [step for step in steps if isinstance(step, WeightRenaming)]
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    by_pattern = {pattern: step for step in converters for pattern in step.source_patterns}
    prefix, state = getattr(model, "base_model_prefix", ""), model.state_dict()
    found = {}
    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if target not in state and name in state:
            target, pattern = rename_source_key(name, [], [], prefix, state)
        found[name] = Renamed(target, pattern, by_pattern[pattern] if pattern else None, target in state)
    return found


def model_modules(model: nn.Module, modules: Iterable[str]) -> dict[str, str]:
    """Return the model's names of a checkpoint's modules, by the checkpoint's names.

    Modules whose weight is merged with others, or that the model lacks, are left out.
    """
    found = renamed(model, [f"{module}.weight" for module in modules])
    return {
        name.removesuffix(".weight"): place.target.removesuffix(".weight")
        for name, place in found.items()
        if place.claimed and place.converter is None and place.target.endswith(".weight")
    }


def transposed(model: nn.Module, modules: Iterable[str]) -> set[str]:
    """Return the modules of a checkpoint that store their matrix as [I, O], as GPT-2's do."""
    found = model_modules(model, modules)
    return {source for source, name in found.items() if type(model.get_submodule(name)).__name__ == "Conv1D"}


def fit_of(model: nn.Module, places: Mapping[str, Renamed]) -> Fit:
    """Compare a checkpoint with a model. `places` are all tensors of the checkpoint, from `renamed`."""
    loaded: Any = model
    made = {target for place in places.values() if place.claimed for target in place.targets}
    unclaimed = {place.target: name for name, place in places.items() if not place.claimed}
    found = SimpleNamespace(missing_keys=set(model.state_dict()) - made, unexpected_keys=set(unclaimed))
    if hasattr(loaded, "_adjust_missing_and_unexpected_keys"):
        loaded._adjust_missing_and_unexpected_keys(found)
    for one, other in (getattr(loaded, "all_tied_weights_keys", None) or {}).items():
        if one in made or other in made:
            found.missing_keys -= {one, other}
    return Fit(frozenset(unclaimed[target] for target in found.unexpected_keys), frozenset(found.missing_keys))
