"""Write the golden files: `make golden`, run by hand after a change of coded bytes."""

import sys
import tempfile
from pathlib import Path

import squeeze
from squeeze.packing.codings import LEVELS
from tests.golden.checkpoint import golden_checkpoint
from tests.golden.samples import PAGE, STREAMS, tuned_dictionary

FOLDER = Path(__file__).parent


def main() -> None:
    for name, golden in STREAMS.items():
        _write(f"{name}.sqz", golden.make())
    known = tuned_dictionary()
    _write("dictionary.5.network.sqzp", known)
    record = squeeze.compress(PAGE % 77, dictionary=squeeze.Dictionary.from_bytes(known), verify=False)
    _write("dictionary.5.record.sqz", record)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for level, zeros in [*((level, False) for level in LEVELS), ("runtime", True), ("archive", True)]:
            source, packed = folder / "checkpoint.safetensors", folder / "packed.safetensors"
            source.write_bytes(golden_checkpoint(zeros=zeros))
            squeeze.pack(source, packed, level=level, overwrite=True)
            _write(f"checkpoint.{'zeros.' if zeros else ''}{level}.safetensors", packed.read_bytes())
        base, source = folder / "base.safetensors", folder / "checkpoint.safetensors"
        base.write_bytes(golden_checkpoint())
        source.write_bytes(golden_checkpoint(steps=3))
        squeeze.pack(source, packed, base=base, overwrite=True)
        _write("checkpoint.ulps.safetensors", packed.read_bytes())


def _write(name: str, data: bytes) -> None:
    path = FOLDER / name
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
        sys.stdout.write(f"wrote {name}\n")


if __name__ == "__main__":
    main()
