"""What a page shows of a run, whatever command it was of."""

import math
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any

__all__ = ["COLUMNS", "MEASURES", "Column", "Estimate", "Matrix", "Measure", "Part", "Shown", "parts_of", "place"]

_PLACE = re.compile(r"(?:.*?\.)?(\d+)\.(.+)")
_ALL = "*"
_SMALL = 0.004  # share of all bytes below which parts are shown as one


@dataclass(frozen=True)
class Measure:
    """What a heat map may show. form: of the numbers, as page.js's `shown` has it; log: on a logarithmic scale."""

    title: str
    form: str
    log: bool = False


@dataclass(frozen=True)
class Column:
    """Of the table of runs. better: "less" or "more", of what is an axis; empty for what is not."""

    title: str
    form: str = "text"
    better: str = ""


MEASURES = {
    "error": Measure("error: share of the output lost", "scientific", log=True),
    "bits": Measure("bits a weight", "bits"),
    "sparsity": Measure("sparsity: share of zeros", "percent"),
    "rank": Measure("rank", "integer"),
    "seconds": Measure("time, seconds", "seconds"),
    "share": Measure("coded size beside raw", "percent"),
    "gap": Measure("coded size above the bound", "percent"),
}
COLUMNS = {
    "run": Column("run"),
    "method": Column("method"),
    "file": Column("file"),
    "tool": Column("tool"),
    "context": Column("context", "integer"),
    "bytes": Column("bytes", "integer", "less"),
    "share": Column("share of the original", "percent", "less"),
    "bits": Column("bits a weight or value", "bits", "less"),
    "perplexity": Column("perplexity", "number", "less"),
    "rise": Column("perplexity above the original's", "percent", "less"),
    "kl": Column("KL, nats a token", "scientific", "less"),
    "agreement": Column("same top token", "percent", "more"),
    "accuracy": Column("mean accuracy on tasks", "percent", "more"),
    "compressing": Column("compressing, MB/s", "number", "more"),
    "decompressing": Column("decompressing, MB/s", "number", "more"),
    "cache": Column("cache, bytes", "integer", "less"),
    "peak": Column("peak, bytes", "integer", "less"),
    "milliseconds": Column("ms a token", "number", "less"),
    "seconds": Column("seconds", "seconds", "less"),
}


@dataclass(frozen=True)
class Matrix:
    """layer: None outside the blocks. values: by the keys of MEASURES. histogram: as engine/solving.py has it."""

    name: str
    layer: int | None
    matrix: str
    about: tuple[tuple[str, str], ...]
    values: dict[str, float | None]
    notes: tuple[str, ...] = ()
    histogram: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A rectangle of the treemap: one of the whole, one of each kind of part, and what these are made of. parent: its
    id. bits: a weight, where it is known."""

    id: str
    parent: str | None
    name: str
    bytes: int = 0
    bits: float | None = None


@dataclass(frozen=True)
class Estimate:
    """Something measured, with its interval of 95 % confidence where there is one; who: of which model."""

    what: str
    who: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Span:
    """A token of a text. kl: nats, how far the models are apart there; agreed: on the likeliest token."""

    text: str
    kl: float
    agreed: bool

    @property
    def shade(self) -> int:
        """Of the background, per cent."""
        return min(round(50 * math.sqrt(max(self.kl, 0))), 100)


@dataclass(frozen=True)
class Texts:
    """What two models write after a prompt: one of them token by token. parted: how much of it is the same."""

    prompt: str
    spans: tuple[Span, ...]
    text: str
    parted: str


@dataclass(frozen=True)
class Place:
    """A token at which two models are far apart, after which prompt and text, and what the other writes instead."""

    number: int
    position: int
    kl: float
    before: str
    token: str
    instead: str


@dataclass(frozen=True)
class Shown:
    """A run. lead: what became of it, in a sentence. warnings: what went otherwise than asked for; left: what was not
    compressed. facts: names and values. rows: of the table of runs, by the keys of COLUMNS. texts, places: of two
    models side by side."""

    name: str
    lead: str
    warnings: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    matrices: tuple[Matrix, ...] = ()
    parts: tuple[Part, ...] = ()
    quality: tuple[Estimate, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    texts: tuple[Texts, ...] = ()
    places: tuple[Place, ...] = ()

    def renamed(self, name: str) -> "Shown":
        """The same run by another name."""
        rows = tuple({**row, "run": name} if row.get("run") == self.name else row for row in self.rows)
        quality = tuple(replace(one, who=name) if one.who == self.name else one for one in self.quality)
        return replace(self, name=name, rows=rows, quality=quality)

    def as_json(self) -> dict[str, Any]:
        """Without numbers that JSON does not have, and without texts and places, which need no script to be shown."""
        document: dict[str, Any] = _finite(asdict(replace(self, texts=(), places=())))
        return document


def place(name: str) -> tuple[int | None, str]:
    """The layer and the matrix in it that a tensor's or module's name stands for."""
    found = _PLACE.fullmatch(name)
    layer, rest = (int(found[1]), found[2]) if found else (None, name)
    return layer, rest.removesuffix(".weight")


def parts_of(sizes: dict[str, int], bits: dict[str, float]) -> tuple[Part, ...]:
    """A treemap of bytes by module or tensor: of each kind of matrix its layers. bits: a weight, of those known."""
    total, kinds = sum(sizes.values()), dict[str, int]()
    for name, size in sizes.items():
        kinds[place(name)[1]] = kinds.get(place(name)[1], 0) + size
    if not total:
        return ()
    small = {kind for kind, size in kinds.items() if size < _SMALL * total}
    parts = [Part(_ALL, None, "all"), *(Part(f"/{kind}", _ALL, kind) for kind in kinds if kind not in small)]
    for name, size in sizes.items():
        layer, kind = place(name)
        if kind not in small:
            text = kind if layer is None else f"layer {layer}"
            parts.append(Part(name, f"/{kind}", text, size, bits.get(name)))
    rest = sum(kinds[kind] for kind in small)
    return (*parts, Part("/", _ALL, f"{len(small)} small"), Part("//", "/", "", rest)) if rest else tuple(parts)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
