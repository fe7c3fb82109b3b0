"""Data of a page: what it shows of a run of any command."""

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
    """A quantity of the heat map; `form` is its number format in page.js and `log` asks for a logarithmic scale."""

    title: str
    form: str
    log: bool = False


@dataclass(frozen=True)
class Column:
    """A column of the table of runs; `better` is "less" or "more" for one that can be an axis, else empty."""

    title: str
    form: str = "text"
    better: str = ""


MEASURES = {
    "error": Measure("error: share of the output lost", "scientific", log=True),
    "bits": Measure("bits a weight", "bits"),
    "sparsity": Measure("sparsity: share of zeros", "percent"),
    "rank": Measure("rank", "integer"),
    "seconds": Measure("time, seconds", "seconds"),
    "share": Measure("coded size in per cent of raw", "percent"),
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
    """Values of a matrix by the keys of MEASURES, with its layer (None outside blocks) and histogram
    (engine/solving.py).
    """

    name: str
    layer: int | None
    matrix: str
    about: tuple[tuple[str, str], ...]
    values: dict[str, float | None]
    notes: tuple[str, ...] = ()
    histogram: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A rectangle of the treemap: the whole, a kind of part, or a member. `bits` are bits a weight, if known."""

    id: str
    parent: str | None
    name: str
    bytes: int = 0
    bits: float | None = None


@dataclass(frozen=True)
class Estimate:
    """A measured value, with its 95 % confidence interval if there is one, and the model it belongs to."""

    what: str
    who: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Span:
    """A token of a text, with the divergence of the models in nats and whether they agree on the likeliest token."""

    text: str
    kl: float
    agreed: bool

    @property
    def shade(self) -> int:
        """Shade of the background in per cent."""
        return min(round(50 * math.sqrt(max(self.kl, 0))), 100)


@dataclass(frozen=True)
class Texts:
    """Texts of two models after a prompt, one by token; `parted` says how much is the same."""

    prompt: str
    spans: tuple[Span, ...]
    text: str
    parted: str


@dataclass(frozen=True)
class Place:
    """A token of one model's text at which the predictions of two differ most.

    `number` is the prompt's, from 1, and `position` the token's, from 0. `before` is the text that leads to it, and
    `instead` the token that the other model ranks first.
    """

    number: int
    position: int
    kl: float
    before: str
    token: str
    instead: str


@dataclass(frozen=True)
class Shown:
    """A run as a page shows it.

    `lead` is a sentence with the result. `warnings` list what differs from the request, and `left` what was not
    compressed. `facts` are names and values. `rows` are rows of the table of runs, by the keys of COLUMNS. `texts` and
    `places` compare two models.
    """

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
        """Return the same run with another name."""
        rows = tuple({**row, "run": name} if row.get("run") == self.name else row for row in self.rows)
        quality = tuple(replace(one, who=name) if one.who == self.name else one for one in self.quality)
        return replace(self, name=name, rows=rows, quality=quality)

    def as_json(self) -> dict[str, Any]:
        """Return JSON values without NaN and infinity, and without texts and places, which need no script."""
        document: dict[str, Any] = _finite(asdict(replace(self, texts=(), places=())))
        return document


def place(name: str) -> tuple[int | None, str]:
    """Return the layer and the matrix in it that a tensor's or module's name refers to."""
    found = _PLACE.fullmatch(name)
    layer, rest = (int(found[1]), found[2]) if found else (None, name)
    return layer, rest.removesuffix(".weight")


def parts_of(sizes: dict[str, int], bits: dict[str, float]) -> tuple[Part, ...]:
    """Return a treemap of bytes: of each kind of matrix, its layers.

    Args:
        sizes: Bytes by module or tensor.
        bits: Bits a weight, for those where they are known.
    """
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
