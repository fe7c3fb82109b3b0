"""The measurements of `squeeze kv-eval`, and the quantised cache of `squeeze generate`."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import QuantizedCache

from squeeze.checkpoint.causal import check_causal, check_positions, position_limit
from squeeze.checkpoint.pretrained import explained
from squeeze.checkpoint.text import read_tokens, tokenize
from squeeze.errors import PolicyError
from squeeze.integrations.load_model import load_model, tokenizer_of
from squeeze.kv.attention import install
from squeeze.kv.base import FullPrecision, Policy
from squeeze.kv.cache import QuantizedKVCache
from squeeze.kv.hybrid import Hybrid
from squeeze.kv.measure import PIECE, Cost, Distance, Prompt, decoding, nominal_bits, passkeys, quality, stepped
from squeeze.kv.memory import nbytes_of
from squeeze.kv.policies import save_policy
from squeeze.kv.specs import check_spec, codes_states, make_policy, needs_calibration, needs_joint_moments
from squeeze.kv.statistics import KVStatistics, observe
from squeeze.recipes.measure.generate import Generation
from squeeze.recipes.measure.kv_usage import Usage, check_coded, check_pieces, check_read, usage_of
from squeeze.recipes.tokens import check_vocabulary

__all__ = ["KVEvalOptions", "Row", "cache_for", "memory_line", "policies_of", "rows"]

FULL = "full precision"
_CONTEXT = 1024  # tokens
_WINDOWS = 6  # of 1,024 tokens to calibrate on
_JOINT_WINDOWS = 24  # of 1,024 tokens for moments of several layers


@dataclasses.dataclass(frozen=True)
class Row:
    """Quality and cost of one policy at one context length.

    `bits` are nominal bits a value, or those of the files of archives; None for full precision. `passkeys` are those
    found and those hidden. `way` says how quality was measured: in "one pass" (kv/teacher.py), "stepped" through the
    cache some tokens at a time, or "continued". A continued measurement steps after half of each window was read as a
    prompt.
    """

    policy: str
    context: int
    bits: float | None
    distance: Distance
    baseline: Distance
    way: str = "one pass"
    cost: Cost | None = None
    passkeys: tuple[int, int] | None = None

    @property
    def percent(self) -> float:
        return 100 * (self.distance.perplexity / self.baseline.perplexity - 1)

    def cells(self) -> tuple[str, ...]:
        cost = (
            (f"{self.cost.bytes}", f"{self.cost.peak}", f"{1e3 * self.cost.seconds:.1f}") if self.cost else ("-",) * 3
        )
        return (
            self.policy + (f" ({self.way})" if self.way != "one pass" else ""),
            str(self.context),
            f"{self.bits:.3f}" if self.bits else "-",
            f"{self.distance.perplexity:.4f}",
            f"{self.percent:+.3f}",
            f"{self.distance.kl:.2e}",
            *cost,
            "{}/{}".format(*self.passkeys) if self.passkeys else "-",
        )

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"percent": self.percent}


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


def rows(
    folder: Path,
    text: Path,
    specs: tuple[str, ...],
    contexts: tuple[int, ...],
    options: KVEvalOptions,
    progress: Callable[[int], None] = lambda n: None,
) -> Iterator[Row]:
    """Yield a row for every policy at every context, full precision first.

    Args:
        folder: The model's folder or GGUF file.
        text: Text file that quality is measured on.
        specs: Policies, such as "kivi:4".
        contexts: Tokens of a window; if empty, 1,024 or as many as the model has positions for.
        options: The other options.
        progress: Called with the number of windows read.

    Raises:
        PolicyError: If a policy is invalid or does not fit the model.
        SqueezeError: If the model or the text cannot be read.
    """
    for spec in specs:
        check_spec(spec)  # before anything takes time
    if options.save_policy and len(specs) + bool(options.kv_budget) != 1:
        raise PolicyError("`save_policy` takes one policy")
    kind = getattr(torch, options.dtype) if options.dtype else None
    model, tokenizer = load_model(folder, kind, options.device), tokenizer_of(folder)
    tokens = read_tokens(text, folder, tokenizer_of)
    check_vocabulary(model, tokens)
    check_causal(model)
    contexts = contexts or (min(_CONTEXT, position_limit(model) or _CONTEXT),)
    check_positions(model, max(contexts), "use `context` {}")
    with explained(folder):
        states = bool(specs) and not options.kv_budget and all(map(codes_states, specs))
        usage = usage_of(model, states)
        policies = policies_of(model, tokenizer, specs, options, usage)
        in_pieces = bool(options.against) or not usage.attention_reads_all
        if in_pieces:
            check_pieces(model)
    for spec, policy in policies.items():
        if not _continues(policy):  # what changes in another way what is read
            check_coded(spec, policy, min(contexts), in_pieces)
    if options.save_policy:
        save_policy(next(iter(policies.values())), options.save_policy)
    measured = _Measured(model, tokenizer, tokens, options.windows, options.passkeys, options.no_cost, usage)
    for context in contexts:
        with explained(folder):
            yield from measured.at_context(policies, context, options, progress)


@dataclasses.dataclass(frozen=True)
class _Measured:
    model: Any
    tokenizer: Any
    tokens: torch.Tensor
    windows: int
    keys: int  # passkeys looked for
    no_cost: bool
    usage: Usage

    def at_context(
        self, policies: dict[str, Policy], context: int, options: KVEvalOptions, progress: Callable[[int], None]
    ) -> Iterator[Row]:
        """Yield the rows of one context: one pass for policies that keep all tokens, if attention reads the cache;
        otherwise through caches.
        """
        continuing = {spec: policy for spec, policy in policies.items() if _continues(policy)}
        recurrent = {spec: policy for spec, policy in continuing.items() if isinstance(policy, Hybrid)}
        evicting = {spec: policy for spec, policy in continuing.items() if spec not in recurrent}
        plain = {spec: policy for spec, policy in policies.items() if spec not in continuing}
        if self.usage.attention_reads_all:
            distances = quality(self.model, self.tokens, plain, context, self.windows, progress)
            for name, distance in distances.items():
                yield self.row(name, policies.get(name, FullPrecision()), context, distance, distances[FULL])
        if evicting:
            yield from self.through_caches(evicting, context, "continued")
        if recurrent:  # whose states are coded at every token
            yield from self.through_caches(recurrent, context, "continued", piece=1)
        if options.against or not self.usage.attention_reads_all:
            rivals = _rivals(self.model, options.against, options.window)
            yield from self.through_caches(plain, context, "stepped", rivals)

    def row(
        self, name: str, policy: Policy, context: int, distance: Distance, baseline: Distance, way: str = ""
    ) -> Row:
        make_cache = _squeeze_cache(self.model, policy)
        depths = tuple((number + 0.5) / self.keys for number in range(self.keys))
        has_row = way == "stepped" and self.usage.attention_reads_all  # in one pass, with the same passkeys
        looks = self.keys and not has_row
        hits = passkeys(self.model, self.tokenizer, make_cache, context, depths) if looks else None
        bits = None if name == FULL else nominal_bits(policy, self.model)
        retrieved = (sum(hits), self.keys) if hits else None
        return Row(name, context, bits, distance, baseline, way or Row.way, self.cost(make_cache, context), retrieved)

    def cost(self, make_cache: Callable[[], Any], context: int) -> Cost | None:
        return None if self.no_cost else decoding(self.model, self.tokens[:context], make_cache())

    def through_caches(
        self,
        policies: Mapping[str, Policy],
        context: int,
        way: str,
        rivals: dict[str, tuple[float, Any]] | None = None,
        piece: int = PIECE,
    ) -> Iterator[Row]:
        """Yield rows that are measured with real caches: full precision, our policies, then rivals."""
        logits: list[torch.Tensor] = []
        half = Prompt(context // 2) if way == "continued" else None

        def distance(make_cache: Callable[[], Any], prompt: Prompt | None = half) -> Distance:
            return stepped(self.model, self.tokens, make_cache, context, self.windows, logits, piece, prompt)

        baseline = distance(_squeeze_cache(self.model, FullPrecision()))
        if self.usage.attention_reads_all:  # and full precision has a row in one pass
            yield Row(FULL, context, None, baseline, baseline, way)
        else:
            yield self.row(FULL, FullPrecision(), context, baseline, baseline, way)
        for name, policy in policies.items():
            make_cache = _squeeze_cache(self.model, policy)
            if policy.archives:
                files = _Files()
                found = distance(make_cache, Prompt(context // 2, files.restored))
                yield Row(name, context, files.bits, found, baseline, way)
            else:
                yield self.row(name, policy, context, distance(make_cache), baseline, way)
        for name, (bits, make_cache) in (rivals or {}).items():
            yield Row(name, context, bits, distance(make_cache), baseline, way, self.cost(make_cache, context))


def _continues(policy: Policy) -> bool:
    """Return whether a policy is measured after a prompt was read: if it chooses tokens, or codes more than keys and
    values."""
    return policy.evicts or policy.archives or isinstance(policy, Hybrid)


class _Files:
    """Files that caches were written to and read from again, and the bits per value that these took."""

    def __init__(self) -> None:
        self._bytes = self._dense = 0

    def restored(self, cache: QuantizedKVCache) -> QuantizedKVCache:
        """Return a cache from the file of another one."""
        with tempfile.TemporaryDirectory(prefix="squeeze-kv-") as folder:
            path = Path(folder, "prompt.kv")
            self._bytes += cache.save(path)
            self._dense += sum(tensor.numel() for layer in cache.packed_layers for tensor in layer.dense())
            device = str(cache.packed_layers[0].device)
            return QuantizedKVCache.load(path, cache.config, policy=cache.policy, device=device)

    @property
    def bits(self) -> float:
        """The bits per value of all tokens, everything in the files included."""
        return 8 * self._bytes / self._dense


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


def _rivals(model: Any, against: tuple[str, ...], window: int) -> dict[str, tuple[float, Callable[[], Any]]]:
    """Return the nominal bits and a constructor of transformers' caches with 4 and 2 bits, by name."""
    return {
        f"{backend} {width}": (width + 0.5, _rival_cache(model, backend, width, window))
        for backend in against
        for width in (4, 2)
    }


def _squeeze_cache(model: Any, policy: Policy) -> Callable[[], Any]:
    install(model)
    return lambda: QuantizedKVCache(model.config, policy)


def _rival_cache(model: Any, backend: str, bits: int, window: int) -> Callable[[], Any]:
    axes = {"axis_key": 1, "axis_value": 1} if backend == "hqq" else {}

    def make_cache() -> Any:
        try:
            return QuantizedCache(backend, model.config, nbits=bits, residual_length=window, **axes)
        except ImportError as error:
            raise PolicyError(f"{backend} is not installed: pip install {_PACKAGES[backend]}") from error

    return make_cache


_PACKAGES = {"quanto": "optimum-quanto", "hqq": "hqq"}


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
