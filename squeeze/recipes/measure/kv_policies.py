"""Policies from the words of a user: those that `squeeze kv-eval` measures, and the cache of `squeeze generate`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from squeeze.checkpoint.pretrained import explained
from squeeze.checkpoint.text import tokenize
from squeeze.errors import PolicyError
from squeeze.kv.attention import install
from squeeze.kv.base import FullPrecision, Policy
from squeeze.kv.cache import QuantizedKVCache
from squeeze.kv.memory import nbytes_of
from squeeze.kv.specs import codes_states, make_policy, needs_calibration, needs_joint_moments
from squeeze.kv.statistics import KVStatistics, observe
from squeeze.recipes.measure.generate import Generation
from squeeze.recipes.measure.kv_usage import Usage, check_read, usage_of

__all__ = ["KVEvalOptions", "cache_for", "memory_line", "policies_of"]

_WINDOWS = 6  # of 1,024 tokens to calibrate on
_JOINT_WINDOWS = 24  # of 1,024 tokens for moments of several layers


@dataclasses.dataclass(frozen=True)
class KVEvalOptions:
    """Options of a measurement besides policies and contexts.

    `sinks` and `window` are the defaults of policies that do not set them. `against` names caches of transformers to
    compare with. `passkeys` is the number of depths at which a passkey is hidden. `calibration` is a text file.
    `kv_budget` adds one policy with this share of 16 bits a value. `save_policy` is a file for the only policy. `dtype`
    is the model's, by torch's name.
    """

    windows: int = 8
    sinks: int = 4
    window: int = 64
    against: tuple[str, ...] = ()
    passkeys: int = 0
    no_cost: bool = False
    device: str = "cpu"
    calibration: Path | None = None
    kv_budget: float | None = None
    save_policy: Path | None = None
    dtype: str | None = None


def policies_of(
    model: Any, tokenizer: Any, words: tuple[str, ...], options: KVEvalOptions, usage: Usage
) -> dict[str, Policy]:
    """Return the policies that `words` and `options.kv_budget` describe, by their words.

    Args:
        model: The loaded model.
        tokenizer: Its tokenizer, for calibration.
        words: Policies, such as "kivi:4".
        options: sinks, window, calibration and kv_budget are read.
        usage: What the model does with its cache.

    Raises:
        PolicyError: If a policy is invalid, or needs a calibration text or queries that the model does not give.
    """
    specs = [*words, *([f"transform:{16 * options.kv_budget}"] if options.kv_budget else [])]
    statistics = None
    if any(map(needs_calibration, specs)):
        if options.calibration is not None:
            check_read(model, usage, "calibration looks at keys, values and queries")
        joint = _JOINT_WINDOWS if any(map(needs_joint_moments, specs)) else 0
        statistics = _statistics(model, tokenizer, options, joint)
    policies = {
        spec: make_policy(spec, model, statistics, sinks=options.sinks, window=options.window) for spec in specs
    }
    if any(policy.observes for policy in policies.values()):
        check_read(model, usage, "snapkv, adakv and softprune look at queries")
    return policies


def _statistics(model: Any, tokenizer: Any, options: KVEvalOptions, joint: int) -> dict[int, KVStatistics]:
    if options.calibration is None:
        raise PolicyError("this policy needs a text to calibrate on: name one with `calibration`")
    limit = getattr(model.config, "max_position_embeddings", 1024)
    tokens = tokenize(tokenizer, options.calibration.read_text("utf-8", errors="replace"))
    context = min(1024, limit, len(tokens))
    return observe(
        model,
        tokens,
        context=context,
        windows=_WINDOWS,
        sinks=options.sinks,
        window=options.window,
        joint=joint,
    )


def cache_for(
    model: Any, tokenizer: Any, kv: str | None, budget: float | None, calibration: Path | None
) -> QuantizedKVCache:
    """Return the cache that `--kv` or `--kv-budget` describes, after patching the model's attention to read it.

    Args:
        model: The loaded model.
        tokenizer: Its tokenizer, for calibration.
        kv: A policy, or a number of bits for kivi.
        budget: Share of 16 bits a value.
        calibration: Text file for policies that need one.
    """
    if kv and budget:
        raise PolicyError("`kv` and `kv_budget` exclude each other: give one of them")
    spec = f"kivi:{kv}" if kv and kv.isdigit() else kv
    with explained(getattr(model, "name_or_path", "") or type(model).__name__):
        usage = usage_of(model, bool(spec) and codes_states(str(spec)))
    install(model)
    if not spec and not budget:
        return QuantizedKVCache(model.config, FullPrecision())
    options = KVEvalOptions(calibration=calibration, kv_budget=budget)
    (policy,) = policies_of(model, tokenizer, (spec,) if spec else (), options, usage).values()
    return QuantizedKVCache(model.config, policy)


def memory_line(generated: Generation) -> str:
    """Return a line with the speed, the memory of the cache, and what it would take in full precision."""
    rate = generated.tokens / generated.seconds if generated.seconds else 0.0
    said = f"{generated.tokens} tokens after {generated.prompt}, {rate:.1f} a second"
    cache = generated.cache
    if cache is None:
        return said
    said = f"{said}; KV cache {nbytes_of(cache)} bytes"
    if not isinstance(cache, QuantizedKVCache) or not cache.full_precision_nbytes:
        return said
    full = cache.full_precision_nbytes
    return f"{said}, {100 * cache.nbytes / full:.1f} % of {full} in {str(cache.dtype).removeprefix('torch.')}"
