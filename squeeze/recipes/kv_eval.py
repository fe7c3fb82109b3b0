"""The table of `squeeze kv-eval`, and what `squeeze generate` says of its cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.checkpoint.text import read_tokens, tokenize
from squeeze.errors import PolicyError
from squeeze.integrations.load_model import load_model
from squeeze.kv import FullPrecision, Policy, QuantizedKVCache, calibrate, describe, specs
from squeeze.kv.measure import Cost, Distance, decoding, passkeys, quality, stepped

if TYPE_CHECKING:
    from squeeze.recipes.generate import Generation

__all__ = ["Row", "cache_for", "memory_line", "rows"]

FULL = "full precision"
_WINDOWS = 6  # of 1,024 tokens to calibrate on


@dataclasses.dataclass(frozen=True)
class Row:
    """bits: nominal, a value; None for full precision. passkeys: found, and looked for. way: how quality was measured:
    "one pass" (teacher.py), "stepped" through the cache itself some tokens at a time, or "continued", stepped after
    the first half of a window was read as a prompt.
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
    policies: tuple[str, ...],
    contexts: tuple[int, ...],
    *,
    windows: int = 8,
    sinks: int = 4,
    window: int = 64,
    against: tuple[str, ...] = (),
    passkeys: int = 0,
    no_cost: bool = False,
    device: str = "cpu",
    calibrate: Path | None = None,
    kv_budget: float | None = None,
    save_policy: Path | None = None,
    dtype: str | None = None,
    progress: Callable[[int], None] = lambda n: None,
) -> Iterator[Row]:
    """Every policy, full precision first, at every context. Raises PolicyError, FormatError and SqueezeError."""
    for spec in policies:
        specs.check(spec)  # before anything takes time
    if save_policy and len(policies) + bool(kv_budget) != 1:
        raise PolicyError("--save-policy takes one policy")
    kind = getattr(torch, dtype) if dtype else None
    model, tokenizer = load_model(folder, kind, device), load_tokenizer(folder)
    tokens = read_tokens(text, folder)
    made = _policies(model, tokenizer, policies, sinks, window, calibrate, kv_budget)
    if save_policy:
        describe.save_policy(next(iter(made.values())), save_policy)
    measured = _Measured(model, tokenizer, tokens, windows, passkeys, no_cost)
    for context in contexts:
        plain = {name: policy for name, policy in made.items() if not specs.evicts(policy)}
        found = quality(model, tokens, plain, context, windows, progress)
        for name, distance in found.items():
            yield measured.row(name, made.get(name, FullPrecision()), context, distance, found[FULL])
        if len(plain) < len(made):
            evicting = {name: policy for name, policy in made.items() if name not in plain}
            yield from measured.through_caches(evicting, context, "continued")
        if against:
            yield from measured.through_caches(plain, context, "stepped", _rivals(model, against, window))


@dataclasses.dataclass(frozen=True)
class _Measured:
    model: Any
    tokenizer: Any
    tokens: torch.Tensor
    windows: int
    keys: int  # passkeys looked for
    no_cost: bool

    def row(self, name: str, policy: Policy, context: int, found: Distance, baseline: Distance, way: str = "") -> Row:
        make = _ours(self.model, policy)
        depths = tuple((place + 0.5) / self.keys for place in range(self.keys))
        looked = self.keys and way != "stepped"  # for those a row in one pass has looked
        hits = passkeys(self.model, self.tokenizer, make, context, depths) if looked else None
        bits = None if name == FULL else nominal_bits(policy, self.model)
        cost = self.cost(make, context)
        return Row(name, context, bits, found, baseline, way or Row.way, cost, (sum(hits), self.keys) if hits else None)

    def cost(self, make: Callable[[], Any], context: int) -> Cost | None:
        return None if self.no_cost else decoding(self.model, self.tokens[:context], make())

    def through_caches(
        self, policies: dict[str, Policy], context: int, way: str, rivals: dict[str, tuple[float, Any]] | None = None
    ) -> Iterator[Row]:
        """Full precision, our policies and other caches, all through the caches themselves."""
        logits: list[torch.Tensor] = []
        prompt = context // 2 if way == "continued" else 0

        def distance(make: Callable[[], Any]) -> Distance:
            return stepped(self.model, self.tokens, make, context, self.windows, logits, prompt=prompt)

        baseline = distance(_ours(self.model, FullPrecision()))
        yield Row(FULL, context, None, baseline, baseline, way)
        for name, policy in policies.items():
            yield self.row(name, policy, context, distance(_ours(self.model, policy)), baseline, way)
        for name, (bits, make) in (rivals or {}).items():
            yield Row(name, context, bits, distance(make), baseline, way, self.cost(make, context))


def nominal_bits(policy: Policy, model: Any) -> float:
    """Bits a coded value, scales included, in the mean over the model."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    total = count = 0.0
    for layer in range(config.num_hidden_layers):
        for part in policy.parts(layer, heads):
            share = len(part.heads) if part.heads is not None else heads
            total += share * (part.keys.bits(policy.block, size) + part.values.bits(policy.block, size))
            count += 2 * share
    return total / count if count else 16.0


def _policies(
    model: Any,
    tokenizer: Any,
    wanted: tuple[str, ...],
    sinks: int,
    window: int,
    calibration: Path | None,
    budget: float | None,
) -> dict[str, Policy]:
    chosen = [*wanted, *([f"transform:{16 * budget}"] if budget else [])]
    statistics = None
    if any(specs.needs_calibration(spec) for spec in chosen):
        statistics = _statistics(model, tokenizer, calibration, sinks, window)
    return {spec: specs.make(spec, model, statistics, sinks=sinks, window=window) for spec in chosen}


def _statistics(model: Any, tokenizer: Any, calibration: Path | None, sinks: int, window: int) -> Any:
    if calibration is None:
        raise PolicyError("this policy needs a text to calibrate on: name one with --calibrate")
    limit = getattr(model.config, "max_position_embeddings", 1024)
    tokens = tokenize(tokenizer, calibration.read_text("utf-8", errors="replace"))
    context = min(1024, limit, len(tokens))
    return calibrate.observe(model, tokens, context=context, windows=_WINDOWS, sinks=sinks, window=window)


def _rivals(model: Any, against: tuple[str, ...], window: int) -> dict[str, tuple[float, Callable[[], Any]]]:
    """transformers' caches at 4 and 2 bits: nominal bits, and how to make one."""
    return {
        f"{backend} {width}": (width + 0.5, _theirs(model, backend, width, window))
        for backend in against
        for width in (4, 2)
    }


def _ours(model: Any, policy: Policy) -> Callable[[], Any]:
    from squeeze.kernels import kv_attention

    kv_attention.install(model)
    return lambda: QuantizedKVCache(model.config, policy)


def _theirs(model: Any, backend: str, bits: int, window: int) -> Callable[[], Any]:
    from transformers.cache_utils import QuantizedCache

    axes = {"axis_key": 1, "axis_value": 1} if backend == "hqq" else {}

    def make() -> Any:
        try:
            return QuantizedCache(backend, model.config, nbits=bits, residual_length=window, **axes)
        except ImportError as error:
            raise PolicyError(f"{backend} is not installed: pip install {_PACKAGES[backend]}") from error

    return make


_PACKAGES = {"quanto": "optimum-quanto", "hqq": "hqq"}


def cache_for(
    model: Any, tokenizer: Any, kv: str | None, budget: float | None, calibration: Path | None
) -> QuantizedKVCache:
    """The cache that `--kv` and `--kv-budget` ask for, and the model made to read it as it lies."""
    from squeeze.kernels import kv_attention

    if kv and budget:
        raise PolicyError("--kv and --kv-budget say two things: give one of them")
    spec = f"kivi:{kv}" if kv and kv.isdigit() else kv
    kv_attention.install(model)
    if not spec and not budget:
        return QuantizedKVCache(model.config, FullPrecision())
    made = _policies(model, tokenizer, (spec,) if spec else (), 4, 64, calibration, budget)
    return QuantizedKVCache(model.config, next(iter(made.values())))


def memory_line(cache: QuantizedKVCache, found: Generation) -> str:
    """How much the cache took, and how much it would have taken."""
    full = cache.full_precision_nbytes
    share = f", {100 * cache.nbytes / full:.1f} % of {full}" if full else ""
    rate = found.tokens / found.seconds if found.seconds else 0.0
    return (
        f"{found.tokens} tokens after {found.prompt}, {rate:.1f} a second; "
        f"KV cache {cache.nbytes} bytes{share} in {str(cache.dtype).removeprefix('torch.')}"
    )
