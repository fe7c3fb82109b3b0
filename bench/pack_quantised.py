"""Quantised checkpoints: bytes stored in each format, and what packing takes off; every folder is unpacked, compared.

python bench/pack_quantised.py MODEL_FOLDER [--bits 2,3,4,8] [--group-size 64] [--formats gptq,compressed-tensors]

The linear layers (not the output head) are rounded to the nearest, the plainest of all methods.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import squeeze
from squeeze.packing import container
from squeeze.quant.formats import QuantizationSpec, read

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.makers.quantised import write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--bits", default="2,3,4,8")
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--formats", default="gptq,gptq_v2,compressed-tensors,squeeze")
    options = parser.parse_args()
    columns = (f"{name:>11}" for name in ("codes", "packed", "share", "folder", "packed", "share"))
    print(f"{'format':<20} {'grid':<8}", *columns)
    for bits in map(int, options.bits.split(",")):
        for symmetric in (True, False):
            for format in options.formats.split(","):
                if format == "gptq" and not symmetric:
                    continue
                spec = QuantizationSpec(bits, options.group_size, symmetric, ignored=("lm_head",))
                with tempfile.TemporaryDirectory() as folder:
                    row = measure(options.model, Path(folder), format, spec)
                grid = f"{bits} {'sym' if symmetric else 'asym'}"
                shares = f"{100 * row[1] / row[0]:>9.1f} %", f"{100 * row[3] / row[2]:>9.1f} %"
                sizes = [f"{size:>11}" for size in row]
                print(f"{format:<20} {grid:<8}", *sizes[:2], shares[0], *sizes[2:], shares[1], flush=True)


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


if __name__ == "__main__":
    main()
