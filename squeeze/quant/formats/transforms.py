"""Rotations of a running network in a `quantization_config`, as compressed-tensors describes them: `transform_config`.

R3 turns queries and keys after their rotary positions, R4 what down_proj is given (QuaRot, arXiv 2404.00456), each by
Sylvester's Hadamard matrix in blocks, in float32. vLLM runs those of linear layers; the package alone does not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from squeeze.errors import FormatError, printable
from squeeze.quant.formats.common import understood

__all__ = ["check_still", "online", "transform_config"]

_KEY = "transform_config"
_ONLINE = ("input", "output", "k_cache", "q_attn")
_APPLIED = {
    "R3": [("re:.*self_attn$", "q_attn"), ("re:.*self_attn$", "k_cache")],
    "R4": [("re:.*mlp\\.down_proj$", "input")],
}


def transform_config(transforms: Mapping[str, int]) -> dict[str, Any]:
    """transforms: inputs of a Hadamard's block, by "R3" and "R4"."""
    groups = {
        name: {
            "type": "hadamard",
            "apply": [
                {"targets": [target], "location": place, "inverse": False, "ignore": []}
                for target, place in _APPLIED[name]
            ],
            "randomize": False,
            "requires_grad": False,
            "head_dim": size,
            "precision": "torch.float32",
        }
        for name, size in transforms.items()
    }
    return {_KEY: {"config_groups": groups}}


def online(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a `quantization_config`, the transforms that run with the network, by name; those of weights are in the
    weights. Raises FormatError where it is no description of transforms."""
    found = {}
    with understood("the transform_config of compressed-tensors"):
        described = config.get(_KEY) or {}
        for name, scheme in dict(described.get("config_groups") or {}).items():
            if applied := [one for one in scheme["apply"] if one["location"] in _ONLINE]:
                found[str(name)] = {**scheme, "apply": applied}
    return found


def check_still(config: Mapping[str, Any], folder: Path | str) -> None:
    """Raises FormatError where weights alone are not the network, since it turns what they are multiplied with. config:
    the `quantization_config` of the folder."""
    if names := list(online(config)):
        raise FormatError(
            f"{folder}: what its weights are given is rotated at run time ({printable(', '.join(names))}), by "
            "transformers with the package compressed-tensors: other readers cannot"
        )
