"""What benchmarks of smaller models share: options, and gaps beside that of a base."""

from collections.abc import Sequence
from pathlib import Path

from bench.entry import Option, Row, option

WORK = option("work", type=Path, help="a folder for the model, what is made of it, and a log of rows")

ADAPTED = option("--adapted", action="store_true", help="the model with its adapter, whose weights lie on no grid")


def small(samples: int = 24) -> tuple[Option, ...]:
    """Options of benchmarks that calibrate on one text and measure on another."""
    return (
        WORK,
        option("--rows", help="names with commas between them (all)"),
        option("--samples", type=int, default=samples, help=f"of 512 tokens of the calibration ({samples})"),
        option("--windows", type=int, help="of 1,024 tokens to measure on (all)"),
        option("--threads", type=int, default=1),
        option("--kl", action="store_true", help="measure the KL divergence, too, which takes the original"),
    )


def beside_base(rows: Sequence[Row]) -> list[Row]:
    """Rows with `of base`: their gap as a share of that of rounding on the same grid."""
    gaps = {row["name"]: row["gap"] for row in rows}
    return [{**row, "of base": _share(row, gaps)} for row in rows]


def _share(row: Row, gaps: dict[str, float]) -> float | None:
    return None if row["name"] == row["base"] or row["base"] not in gaps else row["gap"] / gaps[row["base"]]
