"""Plots for docs/plots/, which are the same bytes for the same results.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart, and shapes differ too. The background is
light, so that a plot is readable on light and dark pages.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.tables import Row

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"
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
    """A result in a plot; `name` may be empty."""

    x: float
    y: float
    name: str


@dataclass(frozen=True)
class Series:
    """Points of one kind. `joined` connects them by a line, in order of x."""

    title: str
    colour: str
    marker: str
    points: Sequence[Point]
    joined: bool = False


@dataclass(frozen=True)
class Plot:
    """A plot.

    Args:
        caption: alternative text for readers who cannot see the plot
        series: function from rows to series
        x, y: titles of the axes
        log: names of the logarithmic axes
        lines: function from rows to the names of y = 0, 1, .. from the top, instead of a scale
        offsets: pairs of a point's name and the offset of its label, in points to the right and up
    """

    caption: str
    series: Callable[[Sequence[Row]], list[Series]]
    x: str
    y: str
    log: str = ""
    lines: Callable[[Sequence[Row]], list[str]] | None = None
    offsets: tuple[tuple[str, tuple[float, float]], ...] = ()


def picture(plot: Plot, rows: Sequence[Row]) -> bytes:
    """Draw a plot as SVG."""
    import matplotlib  # takes a second, and most benchmarks draw nothing

    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(_SETTINGS):
        figure, axes = pyplot.subplots(figsize=(7.6, 4.6), layout="constrained")
        for series in plot.series(rows):
            _draw(axes, series, dict(plot.offsets))
        axes.set(xlabel=plot.x, ylabel=plot.y)
        for axis, letter in ((axes.xaxis, "x"), (axes.yaxis, "y")):
            if letter in plot.log:
                getattr(axes, f"set_{letter}scale")("log")
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("")
        if len(axes.lines) > 1:
            axes.legend(frameon=False, fontsize=8, loc="best")
        if plot.lines:
            names = plot.lines(rows)
            axes.set_yticks(range(len(names)), names)
            axes.invert_yaxis()
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
        side = "right" if right < 0 else "left" if right > 0 else "center"
        axes.annotate(
            *(point.name, (point.x, point.y), (right, up)),
            textcoords="offset points",
            fontsize=7.5,
            color=series.colour,
            zorder=4,
            ha=side,
            va="center" if up == 0 else "baseline",
        )
