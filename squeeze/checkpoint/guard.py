"""A `quantization_config` that transformers refuses to load without `import squeeze.integrations.transformers`.

Of a `quant_method` that it does not know transformers says so, and goes on with random weights; the rotations that a
`transform_config` describes it leaves out. So what only squeeze loads stands in config.json as compressed-tensors with
a config group that neither that package nor a server understands, and that names the import.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["guarded", "unguarded"]

_GROUP = "import squeeze.integrations.transformers"
_CLAIMED = "compressed-tensors"
_OURS = "squeeze-"  # which our own forms begin with


def guarded(described: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be written of a description: others' forms that need nothing of ours stay as they are."""
    method = str(described.get("quant_method"))
    if method.startswith(_OURS):
        ours = {key: value for key, value in described.items() if key != "quant_method"}
        return {"quant_method": _CLAIMED, "format": method, "config_groups": {_GROUP: method}, **ours}
    if method == _CLAIMED and described.get("transform_config"):
        return {**described, "config_groups": {**described["config_groups"], _GROUP: "transform_config"}}
    return dict(described)


def unguarded(described: dict[str, Any]) -> dict[str, Any]:
    """The description that `guarded` was given, or one that it did not make as it is."""
    groups = described.get("config_groups")
    if described.get("quant_method") != _CLAIMED or not isinstance(groups, dict) or _GROUP not in groups:
        return described
    method = groups[_GROUP]
    if isinstance(method, str) and method.startswith(_OURS):
        ours = {key: value for key, value in described.items() if key not in ("format", "config_groups")}
        return {**ours, "quant_method": method}
    return {**described, "config_groups": {name: group for name, group in groups.items() if name != _GROUP}}
