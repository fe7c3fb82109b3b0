"""Pictures of the results, for docs/plots/: the same bytes for the same results.

Colours are Okabe and Ito's, which the colour-blind tell apart, and shapes differ too. The ground is light in itself,
so that a picture reads on a light page and on a dark one. Points carry their names.
"""

import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import records
from bench.entry import Row

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#555555"
_SETTINGS = {
    "svg.hashsalt": "squeeze",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "figure.facecolor": "#FBFBF9",
    "axes.facecolor": "#FBFBF9",
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.which": "major",
    "grid.color": "#E2E2DE",
    "text.color": "#333333",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}


@dataclass(frozen=True)
class Point:
    """A result in a picture; `name` may be empty."""

    x: float
    y: float
    name: str


@dataclass(frozen=True)
class Series:
    """Points of one kind; joined: with a line through them, in order of x."""

    title: str
    colour: str
    marker: str
    points: Sequence[Point]
    joined: bool = False


@dataclass(frozen=True)
class Plot:
    """caption: what the picture shows, for those who cannot see it. entry: whose results. log: axes that are
    logarithmic. lines: names of y = 0, 1, .. from the top, in place of a scale. offsets: where the name of a point
    stands beside it, in points right and up; one to the left ends there.
    """

    caption: str
    entry: str
    series: Callable[[Sequence[Row]], list[Series]]
    x: str
    y: str
    log: str = ""
    lines: Callable[[Sequence[Row]], list[str]] | None = None
    offsets: tuple[tuple[str, tuple[float, float]], ...] = ()
    limits: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None)


def svg(name: str, results: Path = records.RESULTS) -> bytes:
    """A picture as SVG."""
    return drawn(PLOTS[name], results, "svg")


def drawn(plot: Plot, results: Path, form: str) -> bytes:
    return picture(plot, [record["row"] for record in records.load(plot.entry, results)], form)


def picture(plot: Plot, rows: Sequence[Row], form: str) -> bytes:
    import matplotlib  # takes a second, and `python -m bench` draws nothing but docs

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(_SETTINGS):
        figure, axes = pyplot.subplots(figsize=(7.6, 4.6), layout="constrained")
        for series in plot.series(rows):
            _draw(axes, series, dict(plot.offsets))
        _dress(axes, plot)
        if plot.lines:
            names = plot.lines(rows)
            axes.set_yticks(range(len(names)), names)
            axes.invert_yaxis()
        out = io.BytesIO()
        figure.savefig(out, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
        pyplot.close(figure)
    return out.getvalue()


def bars(values: dict[str, int], title: str, marked: Collection[str]) -> bytes:
    """A bar for each name, those that are marked in another colour, as SVG."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(_SETTINGS):
        figure, axes = pyplot.subplots(figsize=(7.6, 0.5 + 0.32 * len(values)), layout="constrained")
        colours = [BLUE if name in marked else GREY for name in values]
        drawn_bars = axes.barh(list(values), list(values.values()), color=colours, height=0.7, zorder=3)
        axes.bar_label(drawn_bars, [f"{value:,}" for value in values.values()], padding=4, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel(title)
        axes.grid(axis="y", visible=False)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return out.getvalue()


def _draw(axes: Any, series: Series, offsets: dict[str, tuple[float, float]]) -> None:
    points = sorted(series.points, key=lambda point: point.x)
    xs, ys = [point.x for point in points], [point.y for point in points]
    style = {"color": series.colour, "marker": series.marker, "label": series.title, "markersize": 6}
    axes.plot(xs, ys, linestyle="-" if series.joined else "", linewidth=1.2, zorder=3, **style)
    for point in points:
        right, up = offsets.get(point.name, (6, 4))
        side = {
            "ha": "right" if right < 0 else "left" if right > 0 else "center",
            "va": "center" if up == 0 else "baseline",
        }
        axes.annotate(
            *(point.name, (point.x, point.y), (right, up)),
            textcoords="offset points",
            fontsize=7.5,
            color=series.colour,
            zorder=4,
            **side,
        )


def _dress(axes: Any, plot: Plot) -> None:
    axes.set(xlabel=plot.x, ylabel=plot.y)
    for axis, letter, limits in ((axes.xaxis, "x", plot.limits[0]), (axes.yaxis, "y", plot.limits[1])):
        if letter in plot.log:
            getattr(axes, f"set_{letter}scale")("log")
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
        if limits:
            getattr(axes, f"set_{letter}lim")(*limits)
    if len(axes.lines) > 1:
        axes.legend(frameon=False, fontsize=8, loc="best")


def _files(rows: Sequence[Row]) -> list[Series]:
    def points(ours: bool) -> list[Point]:
        return [
            Point(row["compress"], 8 * row["bytes"] / row["raw"], row["tool"].removeprefix("squeeze "))
            for row in rows
            if row["tool"].startswith("squeeze") == ours
        ]

    return [Series("squeeze", BLUE, "o", points(True), True), Series("others", ORANGE, "^", points(False))]


def _public(rows: Sequence[Row]) -> list[Series]:
    shown = [row for row in rows if row["file"] == "enwik8.1m" and row.get("compress s")]
    base = next((row["compress s"] for row in shown if row["tool"] == "zpaq -m5"), 0)
    return _files([{**row, "compress": base / row["compress s"]} for row in shown])


def _by_size(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["raw"])


def _packing(rows: Sequence[Row]) -> list[Series]:
    def points(tool: str) -> list[Point]:
        lines = enumerate(_by_size(rows))
        return [Point(100 * row[tool] / row["bound"] - 100, line, "") for line, row in lines if row.get(tool)]

    return [
        Series("zipnn", ORANGE, "^", points("zipnn")),
        Series("squeeze pack", BLUE, "o", points("squeeze")),
        Series("squeeze pack --level archive", GREEN, "s", points("archive")),
    ]


def _checkpoints(rows: Sequence[Row]) -> list[Series]:
    def points(*starts: str) -> list[Point]:
        found = [row for row in rows if row["name"].startswith(starts)]
        return [Point(row["bytes"] / 1e6, row["gap"], row["name"]) for row in found]

    return [
        Series("GPTQ", ORANGE, "^", points("gptq"), True),
        Series("pruned, bf16", BLUE, "o", points("sparsegpt")),
        Series("pruned and quantised", GREEN, "s", points("int")),
    ]


def _families(rows: Sequence[Row]) -> list[str]:
    """Names of families at keep 0.9, the worst first."""
    found = sorted((row for row in rows if row["name"].endswith("-0.9")), key=lambda row: -row["gap"])
    return [row["name"].removesuffix("-0.9") for row in found]


def _factorised(rows: Sequence[Row]) -> list[Series]:
    gaps = {row["name"]: row["gap"] for row in rows}

    def points(suffix: str) -> list[Point]:
        named = enumerate(f"{family}{suffix}" for family in _families(rows))
        return [Point(gaps[name], line, "") for line, name in named if name in gaps]

    return [
        Series("keep 0.8", ORANGE, "^", points("-0.8")),
        Series("keep 0.9", BLUE, "o", points("-0.9")),
        Series("keep 0.9, healed", GREEN, "s", points("-0.9-healed")),
    ]


def _kv(rows: Sequence[Row]) -> list[Series]:
    wanted = {"way": "one pass", "text": "wiki.eval.raw", "window": 64, "context": 1024, "windows": 1}
    shown = [row for row in rows if wanted.items() <= row.items() and row["bits"]]

    def points(start: str) -> list[Point]:
        return [Point(row["bits"], row["kl"], row["policy"]) for row in shown if row["policy"].startswith(start)]

    others = [point for start in ("blockfloat", "lowrank", "vidkv") for point in points(start)]
    return [
        Series("transform", BLUE, "o", points("transform"), True),
        Series("kivi", ORANGE, "^", points("kivi")),
        Series("rotated", GREEN, "s", points("rotated"), True),
        Series("others", GREY, "D", others),
    ]


_BOUND = "-bound-4"


def _gguf(rows: Sequence[Row]) -> list[Series]:
    """Rows with a bound of a token's weight, which only q3_k has unless it is told to."""
    shown = [row | {"type": row["type"].removesuffix(_BOUND)} for row in rows if row["type"].endswith(_BOUND)]
    chosen, fixed = ([row for row in shown if row["type"].startswith("auto") == auto] for auto in (True, False))

    def points(rows: Sequence[Row], field: str, named: bool = True) -> list[Point]:
        found = [row for row in rows if row.get(field) is not None]
        return [Point(row["bytes"] / 1e6, row[field], row["type"] if named else "") for row in found]

    series = [
        Series("squeeze, one type", BLUE, "o", points(fixed, "gap"), True),
        Series("squeeze, types chosen for the size", GREEN, "s", points(chosen, "gap", False)),
        Series("llama.cpp with imatrix", ORANGE, "^", points(fixed, "imatrix", False), True),
        Series("llama.cpp without", GREY, "D", points(fixed, "plain", False)),
    ]
    return [one for one in series if one.points]


PLOTS = {
    "files": Plot(
        "Bits per byte against the speed of compressing, for the levels of squeeze and other compressors",
        *("plane", _files, "speed of compressing, as a multiple of zpaq -m5", "bits per byte, enwik8's first megabyte"),
        log="x",
        offsets=(("-1", (7, 4)), ("zpaq -m5", (7, 3)), ("-2", (-8, 4)), ("-3", (7, -9))),
    ),
    "public": Plot(
        "Bits per byte against the speed of compressing, as whole processes, for squeeze and what people ask about",
        *("public", _public, "speed of compressing, as a multiple of zpaq -m5", "bits per byte, enwik8's first MB"),
        log="x",
    ),
    "packing": Plot(
        "How far packed checkpoints are above the zero-order bound, from the smallest to the largest",
        *("pack", _packing, "bytes above the zero-order bound, %", ""),
        lines=lambda rows: [f"{row['checkpoint']}, {row['raw'] / 1e6:,.1f} MB" for row in _by_size(rows)],
    ),
    "gguf": Plot(
        "The gap of GGUF files against their size, for ours with a bound of 4 and llama.cpp's of the same types",
        *("gguf", _gguf, "file, MB", "gap, nats a token"),
        limits=((84.5, 104), (0, 0.4)),
    ),
    "checkpoints": Plot(
        "The gap against packed bytes, for quantised and pruned models",
        *("prune", _checkpoints, "folder after squeeze pack, MB", "gap, nats a token"),
        log="y",
        offsets=(
            *(
                ("int4-slim", (6, 5)),
                ("int4", (7, -7)),
                ("int3", (-7, -3)),
                ("sparsegpt-permuted", (-7, -3)),
                ("sparsegpt", (7, 0)),
            ),
            *(("sparsegpt-recovered", (-7, -3)), ("sparsegpt-textbook", (0, 7))),
        ),
        limits=((62, 162), None),
    ),
    "factorised": Plot(
        "The gap of factorised models, for families at one ratio and for the plan",
        *("factorize", _factorised, "gap, nats a token", ""),
        log="x",
        lines=_families,
    ),
    "kv": Plot(
        "KL divergence from full precision against nominal bits, for KV cache policies below 6 bits",
        *("kv", _kv, "nominal bits a value", "KL from full precision, nats a token"),
        log="y",
        offsets=(
            *(("rotated:2", (-7, -3)), ("kivi:2", (6, 5)), ("kivi:mean=3", (-7, -3)), ("kivi:4", (-7, -3))),
            *(("blockfloat:4", (6, 6)), ("blockfloat:4,ordered=1", (6, -6))),
        ),
        limits=((1.4, 5.9), (5e-4, 0.6)),
    ),
}
