"""The hyperparameters of a Llama-family network, from a GGUF file's metadata or a folder's config.json."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from squeeze.errors import ModelError, printable
from squeeze.lm import rotary

_MANY = 1 << 31  # more than any size of a model


@dataclass(frozen=True)
class Family:
    """The differences between architectures that the exact engine runs; biases and norms of heads follow from the
    tensors.

    - context: positions if config.json has none.
    - head_size: likewise; None for width / heads.
    - interleaved: GGUF files have the two channels of a rotary pair side by side.
    - window_by_choice: a sliding window needs `use_sliding_window`.
    - handled_keys: keys of GGUF metadata that integrations/gguf supports, and the exact engine does not.
    """

    context: int
    head_size: int | None = None
    interleaved: bool = False
    window_by_choice: bool = False
    handled_keys: tuple[str, ...] = ()


ARCHITECTURES = {  # by config.json's model_type, and general.architecture of GGUF files
    "llama": Family(2048, interleaved=True),
    "mistral": Family(131072, interleaved=True),
    "qwen2": Family(32768, window_by_choice=True),
    "qwen3": Family(32768, head_size=128, window_by_choice=True),
}


MAX_ANGLE = 4.0  # radians per position; models have at most 1, before factors


@dataclass(frozen=True)
class Config:
    """The parameters of a network's arithmetic besides its weights."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int  # rows of the embedding
    context: int  # trained length in tokens
    epsilon: float  # of RMSNorm, a float32
    frequencies: tuple[float, ...]  # rotary angle per position, [head_size / 2], scaling included
    attention_factor: float  # factor of cosines and sines (YaRN), else 1
    start_token: int  # fed before the first token of a text

    def __post_init__(self) -> None:
        sizes = (self.layers, self.width, self.heads, self.kv_heads, self.head_size, self.feed_forward)
        if min(*sizes, self.vocabulary, self.context) < 1:
            raise ModelError("the model's description is damaged: a size is not positive")
        if self.heads % self.kv_heads or self.head_size % 2 or len(self.frequencies) != self.head_size // 2:
            raise ModelError("the model's description is damaged: its numbers of attention heads do not fit together")
        if not 0 <= self.start_token < self.vocabulary:
            raise ModelError("the model's description is damaged: its start token is outside its vocabulary")
        if not all(map(math.isfinite, (self.epsilon, self.attention_factor, *self.frequencies))):
            raise ModelError("the model's description is damaged: it holds a number that is not finite")
        if max(map(abs, self.frequencies)) > MAX_ANGLE:
            raise ModelError("the model's description is damaged: a rotary angle is out of range")

    def to_json(self) -> dict[str, Any]:
        """Return plain values; floats are hexadecimal, so that they are exact."""
        floats = {"epsilon": self.epsilon.hex(), "attention_factor": self.attention_factor.hex()}
        return asdict(self) | floats | {"frequencies": [f.hex() for f in self.frequencies]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Config":
        floats = {name: float.fromhex(values[name]) for name in ("epsilon", "attention_factor")}
        frequencies = tuple(map(float.fromhex, values["frequencies"]))
        return cls(**{**values, **floats, "frequencies": frequencies})


def unsupported(name: str, feature: str, families: Mapping[str, Family] = ARCHITECTURES) -> ModelError:
    """Return the error for a feature that the engine does not support.

    Args:
        name: of the model.
        feature: a noun phrase.
        families: architectures that are supported.
    """
    *most, last = families
    return ModelError(f"{name}: {feature} is not supported; plain {', '.join(most)} and {last} models are")


def check_architecture(name: str, value: Any, families: Mapping[str, Family] = ARCHITECTURES) -> str:
    """Return the architecture if it is one of the families.

    Args:
        name: of the model, for errors.
        value: from its description.
        families: architectures that are supported.

    Raises:
        ModelError: if it is not.
    """
    if not isinstance(value, str) or value not in families:
        raise unsupported(name, f"architecture '{printable(value)}'", families)
    return value


def from_gguf(
    name: str,
    fields: Mapping[str, Any],
    vocabulary: int,
    factors: list[float] | None,
    families: Mapping[str, Family] = ARCHITECTURES,
) -> Config:
    """Read the hyperparameters of a GGUF file.

    Args:
        name: of the model, for errors.
        fields: the file's metadata.
        vocabulary: rows of the embedding.
        factors: divisors of rotary angles in rope_freqs.weight, or None.
        families: architectures that are supported.

    Raises:
        ModelError: if the network is not supported, or its description is damaged.
    """
    architecture = check_architecture(name, fields.get("general.architecture"), families)

    def get(key: str, default: Any = None) -> Any:
        return fields.get(f"{architecture}.{key}", default)

    def whole(key: str, default: Any = None) -> int:
        value = get(key, default)
        if type(value) is not int or not 0 < value < _MANY:
            raise ModelError(f"{name}: the model's description is damaged: {key} is {printable(repr(value))}")
        return value

    for key, feature in _UNSUPPORTED_KEYS.items():
        if get(key) and key not in families[architecture].handled_keys:
            raise unsupported(name, feature, families)
    heads, width = whole("attention.head_count"), whole("embedding_length")
    head_size = whole("attention.key_length", width // heads)
    if whole("attention.value_length", head_size) != head_size:
        raise unsupported(name, "a size of values unlike that of keys")
    if whole("rope.dimension_count", head_size) != head_size:
        raise unsupported(name, "partial rotary embedding")
    context = whole("context_length")
    frequencies, attention_factor = _gguf_rotary(name, get, head_size, context, factors)
    start = [fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos")]
    return Config(
        architecture=architecture,
        layers=whole("block_count"),
        width=width,
        heads=heads,
        kv_heads=whole("attention.head_count_kv", heads),
        head_size=head_size,
        feed_forward=whole("feed_forward_length"),
        vocabulary=vocabulary,
        context=min(
            context, whole("attention.sliding_window", context) if get("attention.sliding_window") else context
        ),
        epsilon=float(np.float32(float(fields[f"{architecture}.attention.layer_norm_rms_epsilon"]))),
        frequencies=frequencies,
        attention_factor=attention_factor,
        start_token=next((int(token) for token in start if token is not None), 0),
    )


_UNSUPPORTED_KEYS = {
    "expert_count": "a mixture of experts",
    "attn_logit_softcapping": "a cap on attention logits",
    "final_logit_softcapping": "a cap on logits",
    "logit_scale": "a scale of logits",
    "embedding_scale": "a scale of embeddings",
    "residual_scale": "a scale of residuals",
    "attention.scale": "a scale of attention",
    "attention.sliding_window_pattern": "a mixture of sliding windows",
}


def _gguf_rotary(
    name: str, get: Any, head_size: int, context: int, factors: list[float] | None
) -> tuple[tuple[float, ...], float]:
    base = float(get("rope.freq_base", 10000.0))
    kind = get("rope.scaling.type", "linear" if get("rope.scale_linear") else "none")
    factor = float(get("rope.scaling.factor") or get("rope.scale_linear") or 1.0)
    if factors is not None:
        if kind != "none" and factor != 1:
            raise unsupported(name, "two rotary scalings at once")
        return rotary.divided(base, head_size, factors), 1.0
    if kind == "none" or factor == 1:
        return rotary.plain(base, head_size), 1.0
    if kind == "linear":
        return rotary.linear(base, head_size, factor), 1.0
    if kind != "yarn":
        raise unsupported(name, f"rotary scaling '{printable(kind)}'")
    trained = float(get("rope.scaling.original_context_length") or context)
    fast = float(get("rope.scaling.yarn_beta_fast") or rotary.BETA_FAST)
    slow = float(get("rope.scaling.yarn_beta_slow") or rotary.BETA_SLOW)
    scale = float(get("rope.scaling.yarn_attn_factor") or get("rope.scaling.attn_factor") or 1.0)
    return rotary.yarn(base, head_size, factor, trained, fast, slow), scale * rotary.yarn_scale(factor)


def from_folder(name: str, values: Mapping[str, Any], vocabulary: int) -> Config:
    """Read the hyperparameters of a Hugging Face folder.

    Args:
        name: of the model, for errors.
        values: config.json.
        vocabulary: rows of the embedding.

    Raises:
        ModelError: if the network is not supported, or its description is damaged.
    """
    architecture = check_architecture(name, values.get("model_type"))
    if values.get("quantization_config"):
        raise unsupported(name, "a folder of quantised tensors")
    if values.get("hidden_act", "silu") != "silu":
        raise unsupported(name, f"activation '{printable(values['hidden_act'])}'")
    family, heads, width = ARCHITECTURES[architecture], int(values["num_attention_heads"]), int(values["hidden_size"])
    head_size = int(values.get("head_dim") or family.head_size or width // heads)
    context = int(values.get("max_position_embeddings") or family.context)
    frequencies, attention_factor = folder_rotary(name, values, head_size, context)
    sliding = values.get("sliding_window")
    if family.window_by_choice and not values.get("use_sliding_window"):
        sliding = None
    return Config(
        architecture=architecture,
        layers=int(values["num_hidden_layers"]),
        width=width,
        heads=heads,
        kv_heads=int(values.get("num_key_value_heads") or heads),
        head_size=head_size,
        feed_forward=int(values["intermediate_size"]),
        vocabulary=vocabulary,
        context=min(context, int(sliding or context)),
        epsilon=float(np.float32(values.get("rms_norm_eps", 1e-6))),
        frequencies=frequencies,
        attention_factor=attention_factor,
        start_token=_start_token(values),
    )


def _start_token(values: Mapping[str, Any]) -> int:
    for key in ("bos_token_id", "eos_token_id"):
        token = values.get(key)
        if isinstance(token, list):
            token = next(iter(token), None)
        if token is not None:
            return int(token)
    return 0


def folder_rotary(
    name: str, values: Mapping[str, Any], head_size: int, context: int
) -> tuple[tuple[float, ...], float]:
    """Return the rotary angles per position of a config.json, [head_size / 2], and the factor of cosines and sines.

    Args:
        name: of the model, for errors.
        values: config.json.
        head_size: numbers of a head.
        context: trained length in tokens.

    Raises:
        ModelError: if the scaling is not supported.
    """
    rope = {**(values.get("rope_parameters") or {}), **(values.get("rope_scaling") or {})}
    base = float(rope.get("rope_theta") or values.get("rope_theta") or 10000.0)
    if rope.get("partial_rotary_factor", values.get("partial_rotary_factor") or 1.0) != 1:
        raise unsupported(name, "partial rotary embedding")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in ("default", "dynamic"):  # dynamic scaling begins beyond the trained context
        return rotary.plain(base, head_size), 1.0
    if kind not in ("linear", "llama3", "yarn"):
        raise unsupported(name, f"rotary scaling '{printable(kind)}'")
    trained = float(rope.get("original_max_position_embeddings") or context)
    factor = float(rope.get("factor") or context / trained)
    if kind == "linear":
        return rotary.linear(base, head_size, factor), 1.0
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return rotary.llama3(base, head_size, factor, low, high, trained), 1.0
    scale = rope.get("attention_factor")
    if scale is None:
        scale = rotary.yarn_scale(factor)
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            scale = rotary.yarn_scale(factor, rope["mscale"]) / rotary.yarn_scale(factor, rope["mscale_all_dim"])
    fast, slow = float(rope.get("beta_fast") or rotary.BETA_FAST), float(rope.get("beta_slow") or rotary.BETA_SLOW)
    angles = rotary.yarn(base, head_size, factor, trained, fast, slow, bool(rope.get("truncate", True)))
    return angles, float(scale)
