"""Quantise, prune and factorise a tiny model of classes that are no decoders, and compare outputs.

Each result is loaded, and its outputs are compared with those of its dense form and of the original.
tests/makers/zoo_others.py makes the models of transformers, and zoo_diffusion.py those of diffusers.
"""

import argparse
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measure import Measure, Row, option
from bench.tables import Column, Listing

_SAME = 2e-3  # relative error of outputs compared with the dense form of the same weights, or
_SHARE = 0.05  # of the error compared with the original, if that is more
_OWN = "wants its dense weight"  # in the refusal of the default format
_OPERATIONS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "quantize": ("quantize", (), {"group_size": 32}),
    "prune 2:4": ("prune", (), {}),
    "factorize": ("factorize", ("whitened",), {"keep": 0.9}),
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    import torch

    from squeeze.checkpoint.pretrained import quiet
    from tests.makers import zoo_diffusion, zoo_others

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    quiet()
    faults = 0
    for name in options.classes or [*zoo_others.KINDS, *zoo_diffusion.KINDS]:
        with tempfile.TemporaryDirectory(dir=options.work) as work:
            row = {"class": name, **_row(name, Path(work))}
        faults += sum(str(cell).startswith("fault") for cell in row.values())
        yield row
    if faults:
        sys.exit(f"Error: {faults} cells are faults.")


def _row(name: str, work: Path) -> Row:
    """Return the lists of blocks of a class, and the error of its outputs after each operation."""
    from squeeze.checkpoint.checkpoint import Checkpoint
    from squeeze.engine.network import Network
    from squeeze.integrations.load_model import load_model

    zoo = _zoo_of(name)
    source, inputs = zoo.write(work / "model", name), zoo.samples(name, 4)
    network = Network(Checkpoint.open(source))
    network.settle(inputs)
    lists = [stack[0].rpartition(".")[0] if len(stack) > 1 else stack[0] for stack in network.stacks]
    default = "compressed-tensors" if zoo.__name__.endswith("others") else "squeeze"
    original, row = load_model(source), {"lists": ", ".join(lists), "format": default}
    for cell, (function, arguments, settings) in _OPERATIONS.items():
        try:
            row |= {cell: _error(name, work, original, function, arguments, settings)}
        except Exception as error:
            if cell == "quantize" and _OWN in str(error):
                own = {**settings, "format": "squeeze"}
                row |= {"format": "squeeze", cell: _error(name, work, original, function, arguments, own)}
            else:
                row[cell] = f"fault: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        shutil.rmtree(work / "out", ignore_errors=True)
    return row


def _error(
    name: str, work: Path, original: Any, function: str, arguments: tuple[Any, ...], settings: dict[str, Any]
) -> float:
    """Return the largest relative error of an output of the loaded result.

    Raises ValueError if the outputs are not those of its dense form.
    """
    import squeeze
    from squeeze.engine.outputs import compare_outputs
    from squeeze.integrations.load_model import load_model

    zoo = _zoo_of(name)
    shared = {"out": work / "out", "calibration": zoo.samples(name, 4), "overwrite": True}
    getattr(squeeze, function)(work / "model", *arguments, **shared, **settings)
    model, inputs = load_model(work / "out"), zoo.samples(name, 2, seed=7)
    squeeze.densify(work / "out", work / "dense", overwrite=True)
    apart = max(one.error for one in compare_outputs(model, load_model(work / "dense"), inputs))
    error = max(one.error for one in compare_outputs(model, original, inputs))
    if not apart <= max(_SAME, _SHARE * error):
        raise ValueError(f"outputs are {apart:.2g} from those of the dense form")
    return round(error, 4)


def _zoo_of(name: str) -> Any:
    """Return the module that makes a class."""
    from tests.makers import zoo_diffusion, zoo_others

    return zoo_others if name in zoo_others.KINDS else zoo_diffusion


MEASURE = Measure(
    rows,
    key=("class",),
    time=20,
    options=(
        option("classes", nargs="*", metavar="CLASS", help="classes to test, default: all"),
        option("--work", type=Path, help="folder for models, default: a temporary one"),
    ),
    tables={
        "classes": Listing(
            (
                Column("class", lambda row: f"`{row['class']}`"),
                Column("lists of blocks", lambda row: f"`{row['lists']}`"),
                Column("quantize to", "format"),
                *(Column(cell, cell, ".3f") for cell in _OPERATIONS),
            ),
            order=lambda row: str(row["class"]),
        )
    },
)
