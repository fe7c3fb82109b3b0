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

from bench.entry import Row

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported


def rows(options: argparse.Namespace) -> Iterator[Row]:
    import torch

    from bench.shared.zoo_cells import outcomes
    from squeeze.checkpoint.pretrained import quiet
    from tests.makers import zoo

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    quiet()
    faults = 0
    for name in options.architectures or zoo.architectures():
        if name in zoo.UNMADE:
            yield {"architecture": name, "unmade": zoo.UNMADE[name]}
            continue
        with tempfile.TemporaryDirectory(dir=options.work) as work:
            row = {"architecture": name, **dict(outcomes(name, Path(work)))}
        faults += sum(str(cell).startswith("fault") for cell in row.values())
        yield row
    if faults:
        sys.exit(f"Error: {faults} cells are faults.")
