"""Quantised checkpoints: bytes stored in each format, and what packing takes off; every folder is unpacked, compared.

The linear layers (not the output head) are rounded to the nearest, the plainest of all methods.
"""

import argparse
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import squeeze
from bench.entry import Row
from squeeze.packing import container
from squeeze.quant.formats import QuantizationSpec, read
from tests.makers.quantised import write


def rows(options: argparse.Namespace) -> Iterator[Row]:
    grids = product(map(int, options.bits.split(",")), (True, False), options.formats.split(","))
    for bits, symmetric, form in grids:
        if form == "gptq" and not symmetric:
            continue
        spec = QuantizationSpec(bits, options.group_size, symmetric, ignored=("lm_head",))
        with tempfile.TemporaryDirectory() as folder:
            codes, packed, whole, small = measure(options.model, Path(folder), form, spec)
        shares = {"codes share": round(packed / codes, 4), "folder share": round(small / whole, 4)}
        yield {"format": form, "bits": bits, "symmetric": symmetric, "codes": codes, "folder": whole, **shares}


def measure(model: Path, folder: Path, format: str, spec: QuantizationSpec) -> tuple[int, int, int, int]:
    """Bytes of codes and of the folder, each before and after packing. Ends the run where unpacking differs."""
    write(model, folder / "quantised", format, spec)
    totals = squeeze.pack(folder / "quantised", folder / "packed")
    squeeze.unpack(folder / "packed", folder / "back")
    for path in (folder / "quantised").iterdir():
        if path.read_bytes() != (folder / "back" / path.name).read_bytes():
            raise SystemExit(f"Error: {format}: {path.name} did not come back")
    plain, packed = read(folder / "quantised"), squeeze.load(folder / "packed")
    names = [f"{module}.{plain.format.leaves[0]}" for module in plain.modules]
    assert set(names) <= set(packed)
    files = (folder / "packed").glob("*.safetensors")
    sizes = {tensor.name: tensor.size for path in files for tensor in container.read(path).file.tensors}
    codes = sum(plain.tensors[name].nbytes for name in names)
    return codes, sum(sizes[name] for name in names), totals.raw, totals.coded
