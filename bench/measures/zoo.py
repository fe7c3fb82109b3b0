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
from operator import itemgetter
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

    from squeeze.checkpoint.pretrained import quiet
    from tests.makers import zoo
    from tests.makers.zoo_cells import outcomes

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    quiet()
    faults = 0
    done = {row["architecture"] for row in records.current("zoo", options.results)}
    known = {*zoo.UNMADE} if options.all else {*zoo.UNMADE, *done}
    for name in options.architectures or sorted({*zoo.architectures()} - known):
        with tempfile.TemporaryDirectory(dir=options.work) as work:
            row = {"architecture": name} | {cell: plainer(said) for cell, said in outcomes(name, Path(work))}
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


def plainer(cell: str) -> str:
    """Return a cell in which the reason of a refusal has no names that are specific to one model."""
    if not cell.startswith(_REFUSED):
        return cell
    reason = cell.removeprefix(_REFUSED)
    for pattern, words in _PLAINER:
        reason = re.sub(pattern, words, reason)
    return _REFUSED + reason


def _reasons(rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of each refusal, in the order of the table."""
    ordered = sorted(rows, key=itemgetter("architecture"))
    found = (row[cell] for row in ordered for cell in CELLS if row[cell].startswith(_REFUSED))
    return {refusal: number for number, refusal in enumerate(dict.fromkeys(found), 1)}


def _marked(rows: Sequence[Row]) -> list[Row]:
    """Return rows with the text that the table shows in each cell."""
    numbers = _reasons(rows)
    return [row | {cell: _mark(row[cell], numbers) for cell in CELLS} for row in rows]


def _mark(cell: str, numbers: Mapping[str, int]) -> str:
    kind, _, remark = cell.partition(": ")
    return {"works": "yes*" if remark else "yes", "refused": f"no ({numbers.get(cell)})"}.get(kind, kind)


def _refusals(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each reason of a refusal, with its number in the table of architectures."""
    return [{"number": number, "reason": cell.removeprefix(_REFUSED)} for cell, number in _reasons(rows).items()]


MEASURE = Measure(
    rows,
    key=("architecture",),
    together="architecture",
    time=45,
    options=(
        option("architectures", nargs="*", help="architectures to test, default: all without a row of this commit"),
        option("--all", action="store_true", help="also test architectures with a row of this commit"),
        option("--work", type=Path, help="folder for models, default: a temporary one"),
    ),
    tables={
        "architectures": Listing(
            *(Column(name, name) for name in ("architecture", *CELLS)),
            order=itemgetter("architecture"),
            prepare=_marked,
        ),
        "architectures-refused": Listing(Column("", "number"), Column("why not", "reason"), prepare=_refusals),
    },
)
