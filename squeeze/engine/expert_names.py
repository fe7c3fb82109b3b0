"""The names that checkpoints give to the matrices of experts which transformers holds in one tensor."""

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["LEAVES", "is_expert", "is_merged", "published"]

LEAVES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def is_expert(name: str) -> bool:
    """Return whether a module or tensor belongs to an expert that a router chooses."""
    return ".experts." in f".{name}"


def published(model_type: str | None, prefix: str) -> dict[str, str]:
    """Return the names that checkpoints of an architecture give to the parts of an expert, with * for its number.

    Args:
        model_type: of the architecture.
        prefix: of the tensors of all experts, as its models have it.

    Returns:
        Names by part, "gate_proj.weight"; empty if transformers does not merge the experts.
    """
    renamings, converters = _steps(model_type)
    found: dict[str, str] = {}
    for name, leaves in LEAVES.items():
        whole = f"{prefix}.{name}"
        for step in converters:
            sources, target = step.source_patterns, step.target_patterns[0]
            if whole.endswith(target) and len(sources) == len(leaves):
                own = [_renamed(whole.removesuffix(target) + source, renamings) for source in sources]
                if all(_merged(one.replace("*", "0"), renamings, converters) == whole for one in own):
                    found |= zip((f"{leaf}.weight" for leaf in leaves), own, strict=True)
    return found if len(found) == sum(map(len, LEAVES.values())) else {}


def is_merged(model_type: str | None, module: str) -> bool:
    """Return whether transformers merges the matrix of an expert that a checkpoint of an architecture calls
    `module`."""
    return _merged(f"{module}.weight", *_steps(model_type)) is not None


def _steps(model_type: str | None) -> tuple[list[Any], list[Any]]:
    """Return the renamings and the converters of transformers for an architecture."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping  # which takes seconds to import
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    steps = (get_checkpoint_conversion_mapping(model_type) if model_type else None) or []
    kinds = WeightRenaming, WeightConverter
    renamings, converters = ([step for step in steps if isinstance(step, kind)] for kind in kinds)
    return renamings, converters


def _merged(name: str, renamings: list[Any], converters: list[Any]) -> str | None:
    """Return the tensor that a converter makes of `name` and others; None if no converter takes it."""
    from transformers.core_model_loading import rename_source_key  # which takes seconds to import

    target, pattern = rename_source_key(name, renamings, converters)
    return target if pattern else None


def _renamed(name: str, renamings: Sequence[Any]) -> str:
    """Return the name before transformers renamed it, by steps that are plain text."""
    for step in renamings:
        before, after = step.source_patterns[0], step.target_patterns[0]
        if re.fullmatch(r"[\w.]+", before + after) and after in name:
            return name.replace(after, before)
    return name
