"""The measurements of `squeeze kv-eval`."""

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
from squeeze.checkpoint.text import read_tokens
from squeeze.errors import PolicyError
from squeeze.integrations.load_model import load_model, tokenizer_of
from squeeze.kv.attention import install
from squeeze.kv.base import FullPrecision, Policy
from squeeze.kv.cache import QuantizedKVCache
from squeeze.kv.hybrid import Hybrid
from squeeze.kv.measure import PIECE, Cost, Distance, Prompt, decoding, nominal_bits, passkeys, quality, stepped
from squeeze.kv.policies import save_policy
from squeeze.kv.specs import check_spec, codes_states
from squeeze.recipes.measure.kv_policies import KVEvalOptions, policies_of
from squeeze.recipes.measure.kv_usage import Usage, check_coded, check_pieces, usage_of
from squeeze.recipes.tokens import check_vocabulary

__all__ = ["Row", "rows"]

FULL = "full precision"
_CONTEXT = 1024  # tokens


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
