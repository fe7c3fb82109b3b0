"""What works with a tiny model of every decoder that transformers has. Exits with 1 if a cell is a fault.

The models are tests/makers/zoo.py's, the checks bench/shared/zoo_cells.py's.
"""

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from bench import records
from bench.measure import Measure, Row, option
from bench.tables import Column, Listing

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported
CELLS = (
    *("pack", "quantize", "quantize, own format", "prune 2:4", "factorize"),
    *("kv-eval", "generate", "generate --kv", "GGUF"),
)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    import torch

    from bench.shared.zoo_cells import outcomes
    from squeeze.checkpoint.pretrained import quiet
    from tests.makers import zoo

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    quiet()
    faults = 0
    done = {row["architecture"] for row in records.current("zoo", options.results)} if options.rest else ()
    for name in options.architectures or zoo.architectures():
        if name in done:
            continue
        if name in zoo.UNMADE:
            yield {"architecture": name, "unmade": zoo.UNMADE[name]}
            continue
        with tempfile.TemporaryDirectory(dir=options.work) as work:
            row = {"architecture": name, **dict(outcomes(name, Path(work)))}
        faults += sum(str(cell).startswith("fault") for cell in row.values())
        yield row
    if faults:
        sys.exit(f"Error: {faults} cells are faults.")


def _mark(cell: str) -> Column:
    def shown(row: Row) -> str:
        if "unmade" in row:
            return ""
        kind = row[cell].partition(":")[0]
        return {"works": "yes", "refused": "no"}.get(kind, kind)

    return Column(cell, shown)


def _why(row: Row) -> str:
    """Return the refusals, each once, with its cells."""
    if "unmade" in row:
        return f"not tried: {row['unmade']}"
    reasons: dict[str, list[str]] = {}
    for cell in CELLS:
        if row[cell] != "works" and cell != "GGUF":
            reasons.setdefault(row[cell].partition(": ")[2], []).append(cell)
    return "; ".join(f"{', '.join(cells)}: {reason}".replace("|", "\\|") for reason, cells in reasons.items())


MEASURE = Measure(
    rows,
    key=("architecture",),
    time=45,
    options=(
        option("architectures", nargs="*", metavar="ARCHITECTURE", help="default: all"),
        option("--work", type=Path, help="a folder for models, default: a temporary one"),
        option("--rest", action="store_true", help="only what has no row of this commit yet"),
    ),
    tables={
        "architectures": Listing(
            (Column("architecture", "architecture"), *map(_mark, CELLS), Column("why not", _why)),
            order=lambda row: row["architecture"],
        )
    },
)
