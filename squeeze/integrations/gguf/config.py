"""The config.json of a GGUF file, derived from its metadata.

A file has only the divisors of Llama 3's rotary scaling, so its settings are solved for. With s the share of an angle f
that is kept, f becomes f (s + (1 - s) / factor), and s = a f + b, clipped to [0, 1]. Only the ratios of low, high and
the trained context matter, so one of them is free.
"""

from collections.abc import Sequence
from math import pi
from typing import Any

import numpy as np

from squeeze.errors import ModelError
from squeeze.integrations.gguf.families import FULL, LOCAL
from squeeze.integrations.gguf.model import READ, GgufModel
from squeeze.lm import rotary
from squeeze.lm.config import folder_rotary, unsupported

__all__ = ["description", "ramp_of"]

_CLASSES = {  # by model_type
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
_LLAMA3 = ((8.0, 1.0, 4.0, 8192.0), (32.0, 1.0, 4.0, 8192.0))  # factor, low, high, context: Llama 3.1 and 3.2
_CLOSE = 1e-5  # between rotary angles: files have their divisors in float32
_WINDOW = 4096  # Gemma 2's, where a file does not say it
_CAPS = (50.0, 30.0)  # likewise, of attention and of the logits


def description(model: GgufModel) -> dict[str, Any]:
    """Return the config.json of a GGUF file.

    Raises ModelError if config.json cannot describe the model, or the metadata is damaged.
    """
    config, fields = model.source.config, model.fields
    described: dict[str, Any] = {
        "architectures": [_CLASSES[model.kind]],
        "model_type": model.kind,
        "hidden_size": config.width,
        "intermediate_size": config.feed_forward,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_activation" if model.family.period else "hidden_act": model.family.activations[0],
        "max_position_embeddings": model.whole("context_length"),
        "rms_norm_eps": config.epsilon if config.epsilon == 0 else float(f"{config.epsilon:.6g}"),
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": "head" not in model.source.tensors,
        "torch_dtype": "bfloat16",
        "rope_theta": float(model.get("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(model),
    }
    if model.kind not in ("mistral", "mixtral", "qwen2"):
        described["attention_bias"] = "0.query_bias" in model.source.tensors
    if model.kind == "llama":
        described["mlp_bias"] = "0.gate_bias" in model.source.tensors
    if model.kind in ("mistral", "mixtral"):
        described["sliding_window"] = model.get("attention.sliding_window")
    described |= _of_experts(model) | _of_windows(model)
    for kind in ("bos", "eos", "pad"):
        token = fields.get(f"tokenizer.ggml.{'padding' if kind == 'pad' else kind}_token_id")
        if token is not None:
            described[f"{kind}_token_id"] = int(token)
    _check_rotary(model, described)
    return described


def _of_experts(model: GgufModel) -> dict[str, Any]:
    if not model.family.experts:
        return {}
    count, width = model.whole("expert_count"), model.expert_width
    described: dict[str, Any] = {"num_experts_per_tok": model.whole("expert_used_count")}
    if described["num_experts_per_tok"] > count:
        raise ModelError(
            f"{model.source.name}: the model's description is damaged: a token uses more experts than {count}"
        )
    if model.kind == "mixtral":
        return described | {"num_local_experts": count, "intermediate_size": width}
    shares = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return described | shares | {"num_experts": count, "moe_intermediate_size": width}


def _of_windows(model: GgufModel) -> dict[str, Any]:
    """Return the settings of Gemma models with sliding windows in some blocks."""
    family, config, period = model.family, model.source.config, model.family.period
    if not period:
        return {}
    windows = [bool((i + 1) % period) for i in range(config.layers)]
    if model.get("attention.sliding_window_pattern", period) not in (period, windows):
        raise unsupported(model.source.name, "another pattern of sliding windows", READ)
    attention, logits = _CAPS if family.capped else (None, None)
    by_width = config.layers == family.by_width
    return {
        "sliding_window": model.whole("attention.sliding_window", _WINDOW if family.capped else None),
        "layer_types": [LOCAL if window else FULL for window in windows],
        "query_pre_attn_scalar": config.width // config.heads if by_width else config.head_size,
        "attn_logit_softcapping": _number(model.get("attn_logit_softcapping", attention)),
        "final_logit_softcapping": _number(model.get("final_logit_softcapping", logits)),
        **({} if family.local_base is None else {"rope_local_base_freq": family.local_base}),
    }


def _number(value: Any) -> float | None:
    return None if value is None else float(f"{float(value):.6g}")


def _check_rotary(model: GgufModel, described: dict[str, Any]) -> None:
    """Raise ModelError if config.json describes other rotary angles than the file."""
    name, config = model.source.name, model.source.config
    angles, factor = folder_rotary(name, described, config.head_size, described["max_position_embeddings"])
    wanted = (*config.frequencies, config.attention_factor)
    if not np.allclose((*angles, factor), wanted, rtol=_CLOSE, atol=0):
        raise unsupported(name, "a rotary scaling that config.json cannot describe")


def _rope_scaling(model: GgufModel) -> dict[str, Any] | None:
    config = model.source.config

    def get(key: str) -> Any:
        return model.get(f"rope.{key}")

    base = float(get("freq_base") or 10000.0)
    if config.frequencies == rotary.plain(base, config.head_size) and config.attention_factor == 1:
        return None
    factor = float(get("scaling.factor") or get("scale_linear") or 1.0)
    kind = get("scaling.type") or ("linear" if get("scale_linear") else "none")
    if factor != 1 and kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if factor != 1 and kind == "yarn":
        trained = get("scaling.original_context_length") or model.whole("context_length")
        return {
            **{"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": int(trained)},
            "attention_factor": config.attention_factor,
            "beta_fast": float(get("scaling.yarn_beta_fast") or rotary.BETA_FAST),
            "beta_slow": float(get("scaling.yarn_beta_slow") or rotary.BETA_SLOW),
        }
    plain = rotary.plain(base, config.head_size)
    divisors = [one / other for one, other in zip(plain, config.frequencies, strict=True)]
    if np.allclose(divisors, divisors[0], rtol=_CLOSE, atol=0):
        return {"rope_type": "linear", "factor": divisors[0]}
    for factor, low, high, context in (*_LLAMA3, *ramp_of(plain, divisors)):
        angles = rotary.llama3(base, config.head_size, factor, low, high, context)
        if np.allclose(angles, config.frequencies, rtol=_CLOSE, atol=0):
            return {
                **{"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high},
                "original_max_position_embeddings": int(context),
            }
    raise unsupported(model.source.name, "a rotary embedding with other divisors")


_ALIKE = 1e-9  # divisors are float32, and angles float64
_NICE = 1e-4  # how near to whole numbers a trained context is taken as one


def ramp_of(angles: Sequence[float], divisors: Sequence[float]) -> list[tuple[float, float, float, float]]:
    """Return likely settings of Llama 3's rotary scaling for given divisors, the likeliest first.

    Each is (factor, low, high, trained context). The list is empty if the divisors are of another kind.

    Args:
        angles: Unscaled angles, largest first.
        divisors: Divisor of each angle.
    """
    factor = max(divisors)
    if min(divisors) < 1 - _ALIKE or factor <= min(divisors) + _ALIKE:
        return []
    shares = [(1 / divisor - 1 / factor) / (1 - 1 / factor) for divisor in divisors]
    slope, lift = _line(list(zip(angles, shares, strict=True)))
    if slope <= 0 or lift >= 0:  # angles down to 0 are divided
        return []
    low, width = 1.0, -1 / lift  # of which the context is in units of low
    context = 2 * pi * slope * width
    whole = max(round(context), 1)
    exact = float(f"{factor:.9g}"), whole / context, whole / context * (1 + width), float(whole)
    nice = float(f"{factor:.6g}"), low, float(f"{1 + width:.6g}"), float(whole)
    return [nice, exact] if abs(whole / context - 1) < _NICE else [exact]


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and intercept of kept shares over angles, from (angle, share) with the largest angle first."""
    between = [(angle, share) for angle, share in points if _ALIKE < share < 1 - _ALIKE]
    kept = [angle for angle, share in points if share >= 1 - _ALIKE]
    divided = [angle for angle, share in points if share <= _ALIKE]
    if len(between) > 1:
        (most, above), (least, below) = between[0], between[-1]
        slope = (above - below) / (most - least)
        return slope, below - slope * least
    ends = [(kept[-1], 1.0)] if kept else []
    ends += [(divided[0], 0.0)] if divided else []
    if not between:
        (most, _), (least, _) = ends
        return 1 / (most - least), -least / (most - least)
    angle, share = between[0]
    slope = max((other - share) / (end - angle) for end, other in ends)
    return slope, share - slope * angle
