"""Test every operation with a tiny model of each decoder architecture of transformers. Exits with 1 if a cell is a
fault.

tests/makers/zoo.py makes the models, and tests/makers/zoo_cells.py has the checks.
"""

import argparse
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from bench import records
from bench.measure import Measure, Row, option
from bench.tables import Column, Listing, markdown

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported
CELLS = (
    *("pack", "quantize", "quantize, own format", "prune 2:4", "factorize"),
    *("kv-eval", "generate", "generate --kv", "GGUF"),
)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    import torch

    from squeeze.checkpoint.pretrained import quiet
    from tests.makers import zoo
    from tests.makers.zoo_cells import outcomes

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    quiet()
    faults = 0
    done = {row["architecture"] for row in records.current("zoo", options.results)}
    for name in options.architectures or sorted({*zoo.architectures()} - {*zoo.UNMADE} - done):
        with tempfile.TemporaryDirectory(dir=options.work) as work:
            row = {"architecture": name, **dict(outcomes(name, Path(work)))}
        faults += sum(str(cell).startswith("fault") for cell in row.values())
        yield row
    if faults:
        sys.exit(f"Error: {faults} cells are faults.")


_REFUSED = "refused: "
_PLAINER = (
    (r"^\S+: ", ""),  # a folder's or a module's name
    (r"the architecture '[^']+' ", ""),
    (r"\b[A-Za-z]\w+(ForCausalLM|LMHead\w*|ForConditionalGeneration|Decoder)\b", "the model"),
    (r"'(?:\w+\.)+?((?:\w+\.)?\w+)'", r"`\1`"),  # tensors, without the block that they are in
)


def _reason(cell: str) -> str:
    """Return why a cell is refused, without names that are specific to one model; empty if it is not refused."""
    if not cell.startswith(_REFUSED):
        return ""
    reason = cell.removeprefix(_REFUSED)
    for pattern, plainer in _PLAINER:
        reason = re.sub(pattern, plainer, reason)
    return reason


def _reasons(rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of each reason, in the order of the table."""
    ordered = sorted(rows, key=_name)
    found = (_reason(row[cell]) for row in ordered for cell in CELLS)
    return {reason: number for number, reason in enumerate(dict.fromkeys(filter(None, found)), 1)}


def _marked(rows: Sequence[Row]) -> list[Row]:
    """Return rows with the text that the table shows in each cell."""
    numbers = _reasons(rows)
    return [row | {cell: _mark(row[cell], numbers) for cell in CELLS} for row in rows]


def _mark(cell: str, numbers: Mapping[str, int]) -> str:
    kind, _, remark = cell.partition(": ")
    return {"works": "yes*" if remark else "yes", "refused": f"no ({numbers.get(_reason(cell))})"}.get(kind, kind)


def _name(row: Row) -> str:
    return str(row["architecture"])


class Reasons:
    """A table with a line for each reason of a refusal, by its number in the table of architectures."""

    def chosen(self, rows: Sequence[Row]) -> list[Row]:
        return list(rows)

    def lines(self, rows: Sequence[Row]) -> list[str]:
        return markdown(["", "why not"], [[str(number), reason] for reason, number in _reasons(rows).items()])


MEASURE = Measure(
    rows,
    key=("architecture",),
    time=45,
    options=(
        option("architectures", nargs="*", help="architectures to test, default: all without a row of this commit"),
        option("--work", type=Path, help="folder for models, default: a temporary one"),
    ),
    tables={
        "architectures": Listing(
            *(Column(name, name) for name in ("architecture", *CELLS)),
            order=_name,
            prepare=_marked,
        ),
        "architectures-refused": Reasons(),
    },
)
