"""Checks of a model's config.json: types, ranges, and no more layers than the weights can have.

It is checked before transformers reads it, which trusts it.

A `quantization_config` that only squeeze supports is guarded, so that transformers refuses to load it without `import
squeeze.integrations.transformers`. Otherwise, if transformers does not know a `quant_method`, it only warns and
continues with random weights, and it ignores the rotations of a `transform_config`. So config.json has such
descriptions as compressed-tensors with a config group that neither that package nor a server understands, and that
names the import.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from squeeze.checkpoint.diffusion import is_diffusion
from squeeze.checkpoint.weight_files import why_missing
from squeeze.errors import FormatError, printable
from squeeze.system.documents import read_object
from squeeze.system.storage import component

__all__ = ["CONFIG", "check_config", "check_description", "check_layers", "guarded", "read_config", "unguarded"]

CONFIG = "config.json"
_MANY = 1 << 31
_MOST = 1e30  # of a number of a rotary embedding
_WHOLE = {  # smallest and largest integer; families use different names
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), (1, 1 << 20)),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), (1, 1 << 14)),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), (1, 1 << 14)),
    **dict.fromkeys(("num_key_value_heads", "head_dim", "qk_rope_head_dim", "v_head_dim"), (1, 1 << 14)),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "moe_intermediate_size"), (0, 1 << 24)),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), (1, _MANY)),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok"), (0, 1 << 13)),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), (-_MANY, _MANY)),
    "vocab_size": (1, 1 << 26),
    "sliding_window": (0, _MANY),
    "num_labels": (0, 1 << 20),
}
_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")  # may not be null
_SINGLE = ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings")  # the same for all layers
_NUMBERS = {
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), (0.0, 1.0)),
    **dict.fromkeys(("attention_dropout", "partial_rotary_factor"), (0.0, 1.0)),
    "rope_theta": (1e-3, _MOST),
    "initializer_range": (0.0, 1e6),
}
_BY_KIND = ("rope_theta", "partial_rotary_factor")  # may be tables: a number for each kind of layer
_LAYER_KINDS = ("full_attention", "sliding_attention")
_TEXTS = ("model_type", "hidden_act", "hidden_activation")
_TABLES = ("auto_map", "quantization_config", "compression_config", "sparsity_config", "text_config")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_MOST_EXPERTS = 1 << 17  # in all layers
_TYPES = re.compile(r"(torch\.)?(auto|float(8_\w+|16|32|64)?|bfloat16|half|double|u?int(8|16|32|64)|bool)", re.ASCII)
_OF_CALLERS = ("base_folder", "resident", "product", "check", "large_share")  # integrations/load_options.py
_FETCHED = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")


def read_config(folder: Path) -> dict[str, Any]:
    """Return a folder's config.json, checked, with its `quantization_config` unguarded. Raises FormatError if it is
    invalid."""
    path = folder / CONFIG
    if not path.is_file():
        raise FormatError(f"{folder}: not a model's folder: {why_missing(folder, CONFIG)}")
    config = read_object(path)
    try:
        of_diffusers = is_diffusion(config)  # whose numbers diffusion.py checks
        check_config({key: config[key] for key in _TABLES if key in config} if of_diffusers else config)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    if described := config.get("quantization_config"):
        config["quantization_config"] = described = unguarded(described)
        try:
            if str(described.get("quant_method")).startswith("squeeze"):
                check_description(described)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
    return config


def check_description(described: Mapping[str, Any]) -> None:
    """Raise FormatError if a `quantization_config` sets an option that only the caller may set."""
    for key in _OF_CALLERS:
        if key in described:
            raise FormatError(
                f"quantization_config: {key} is an option of the caller, and never read from a file: delete it there, "
                "and use load_options"
            )


def check_config(config: Mapping[str, Any]) -> None:
    """Raise FormatError for a value of a wrong type or out of range."""
    for key, value in config.items():
        if key in _WHOLE:
            _check_whole(key, value)
        elif key in _NUMBERS:
            _check_number(key, value)
        elif key in _TEXTS and not (isinstance(value, str) or (value is None and key != "model_type")):
            raise _wrong(key, value, "is not a text")
        elif key in _TABLES and not isinstance(value, (dict, type(None))):
            raise _wrong(key, value, "is not a table")
        elif key in ("dtype", "torch_dtype") and isinstance(value, str):
            _check_type(key, value)
        elif key in _FETCHED and not _is_named(value):
            raise _wrong(key, value, "is code from elsewhere, which is never run")
        elif key == "transformers_weights" and value is not None:  # the file that transformers opens
            component(value)
        if key.endswith("_config") and isinstance(value, dict):
            check_config(value)
    if "configuration_files" in config:
        raise FormatError("configuration_files: other configurations are not read: name the one to use config.json")
    _check_rope(config)
    _check_heads(config)


def check_layers(config: Mapping[str, Any], tensors: int) -> None:
    """Raise FormatError if a model has more layers than its weights have tensors, or too many experts."""
    layers = max((config[key] for key in _LAYERS if isinstance(config.get(key), int)), default=1)
    if layers > tensors:
        raise FormatError(f"it describes {layers} layers, and the weights are {tensors} tensors")
    experts = max((config[key] for key in _EXPERTS if isinstance(config.get(key), int)), default=0)
    if layers * experts > _MOST_EXPERTS:
        raise FormatError(f"it describes {layers} layers of {experts} experts, and at most {_MOST_EXPERTS} are taken")
    for key, value in config.items():
        if key.endswith("_config") and isinstance(value, dict):
            check_layers(value, tensors)


def _wrong(key: str, value: Any, fault: str) -> FormatError:
    return FormatError(f"{printable(key)}: {printable(repr(value))} {fault}")


def _check_whole(key: str, value: Any) -> None:
    """Check an integer, or a list of integers: one for each layer, or several tokens."""
    least, most = _WHOLE[key]
    if isinstance(value, list) and key in _SINGLE:
        raise _wrong(key, value, "is not a whole number")
    for number in value if isinstance(value, list) else [value]:
        if number is None and not isinstance(value, list) and key not in _NEEDED:
            continue
        if type(number) is not int:
            raise _wrong(key, number, "is not a whole number")
        if not least <= number <= most:
            raise _wrong(key, number, f"is not from {least} to {most}")


def _check_number(key: str, value: Any) -> None:
    least, most = _NUMBERS[key]
    if value is None or (isinstance(value, dict) and key in _BY_KIND):  # what stands in it, transformers checks
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(key, value, "is not a number")
    if not least <= value <= most:
        raise _wrong(key, value, f"is not from {least:g} to {most:g}")


def _check_type(key: str, value: str) -> None:
    if not _TYPES.fullmatch(value):
        raise _wrong(key, value, "is not a dtype")


def _is_named(value: Any) -> bool:
    """Return whether all implementations are names of transformers, and not of repositories."""
    values = value.values() if isinstance(value, dict) else [value]
    return all(one is None or (isinstance(one, str) and one.isidentifier()) for one in values)


def _check_rope(config: Mapping[str, Any]) -> None:
    """Check that rotary scaling is a table of finite numbers, or one table for each kind of layer."""
    for key in ("rope_scaling", "rope_parameters"):
        table = config.get(key)
        if not isinstance(table, (dict, type(None))):
            raise _wrong(key, table, "is not a table")
        for kind in _LAYER_KINDS:
            if table and not isinstance(table.get(kind), (dict, type(None))):
                raise _wrong(f"{key}.{kind}", table[kind], "is not a table")
        inner = [value for value in (table or {}).values() if isinstance(value, dict)]
        for mapping in (table or {}, *inner):
            for name, value in mapping.items():
                for number in value if isinstance(value, list) else [value]:
                    if isinstance(number, (int, float)) and not abs(number) <= _MOST:
                        raise _wrong(f"{key}.{name}", number, "is not a finite number")


def _check_heads(config: Mapping[str, Any]) -> None:
    heads, shared = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
        raise FormatError(f"num_attention_heads: {heads} do not share {shared} heads of keys and values")


_GROUP = "import squeeze.integrations.transformers"
_CLAIMED = "compressed-tensors"
_OURS = "squeeze-"  # prefix of the quant_method of our own forms


def guarded(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description to be written; descriptions that need nothing of squeeze stay unchanged."""
    method = str(described.get("quant_method"))
    if method.startswith(_OURS):
        ours = {key: value for key, value in described.items() if key != "quant_method"}
        return {"quant_method": _CLAIMED, "format": method, "config_groups": {_GROUP: method}, **ours}
    if method == _CLAIMED and described.get("transform_config"):
        return {**described, "config_groups": {**described["config_groups"], _GROUP: "transform_config"}}
    return dict(described)


def unguarded(described: dict[str, Any]) -> dict[str, Any]:
    """Return the description that `guarded` was given; other descriptions unchanged."""
    groups = described.get("config_groups")
    if described.get("quant_method") != _CLAIMED or not isinstance(groups, dict) or _GROUP not in groups:
        return described
    method = groups[_GROUP]
    if isinstance(method, str) and method.startswith(_OURS):
        ours = {key: value for key, value in described.items() if key not in ("format", "config_groups")}
        return {**ours, "quant_method": method}
    return {**described, "config_groups": {name: group for name, group in groups.items() if name != _GROUP}}
