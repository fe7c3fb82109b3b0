"""Draw the learning curve of the package's network from the log of its training: `python -m training.curve`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bench.plots import BLUE, ORANGE, Plot, Point, Series, picture

LOG = Path(__file__).with_name("log.jsonl")
PICTURE = Path(__file__).with_name("learning-curve.svg")


def _series(records: Sequence[dict[str, Any]]) -> list[Series]:
    shown = [record for record in records if "held_bits" in record]

    def points(value: str) -> list[Point]:
        return [Point(record["bytes"] / 1e6, record[value], "") for record in shown]

    return [
        Series("held out: mean of ten kinds, first 8 KB of documents", BLUE, "o", points("held_bits"), joined=True),
        Series("what was trained on, since the checkpoint before", ORANGE, "^", points("train_bits"), joined=True),
    ]


CURVE = Plot(
    caption="Bits a byte of the network against megabytes of text that it was trained on",
    series=_series,
    x="megabytes of text seen",
    y="bits a byte",
)


def drawn(log: Path = LOG) -> bytes:
    """Draw the plot as SVG, which is the same bytes for the same log."""
    found: bytes = picture(CURVE, [json.loads(line) for line in log.read_text("utf-8").splitlines()])
    return found


@click.command()
def main() -> None:
    """Write the plot of README.md."""
    PICTURE.write_bytes(drawn())


if __name__ == "__main__":
    main()
