"""Writes the golden files: `make golden`, run by hand when a level is new or a numerics version changes.

A golden file must decode for ever, so this never replaces one that exists.
"""

import sys
import tempfile
from pathlib import Path

import squeeze
from squeeze.codecs.stream import levels
from squeeze.packing.container import LEVELS
from tests.golden.checkpoint import golden_checkpoint
from tests.golden.samples import BATCHES, PAGE, SAMPLES, coded, in_batches, tuned_dictionary, with_repeats

FOLDER = Path(__file__).parent


def main() -> None:
    for name, data in SAMPLES.items():
        for level in levels.LEVELS:
            path = FOLDER / f"{name}.{level}.sqz"
            if not path.exists():
                path.write_bytes(coded(data, level))
                sys.stdout.write(f"wrote {path.name}\n")
    path = FOLDER / "repeats.8.sqz"
    if not path.exists():
        path.write_bytes(with_repeats())
        sys.stdout.write(f"wrote {path.name}\n")
    known = FOLDER / "dictionary.5.network.sqzp"
    if not known.exists():
        known.write_bytes(tuned_dictionary())
        sys.stdout.write(f"wrote {known.name}\n")
    record = FOLDER / "dictionary.5.record.sqz"
    if not record.exists():
        record.write_bytes(squeeze.compress(PAGE % 77, dictionary=known, verify=False))
        sys.stdout.write(f"wrote {record.name}\n")
    for name in BATCHES:
        path = FOLDER / f"{name}.8.batches.sqz"
        if not path.exists():
            path.write_bytes(in_batches(SAMPLES[name]))
            sys.stdout.write(f"wrote {path.name}\n")
    for level, zeros in [*((level, False) for level in LEVELS), ("runtime", True), ("archive", True)]:
        path = FOLDER / f"checkpoint.{'zeros.' if zeros else ''}{level}.safetensors"
        if not path.exists():
            with tempfile.TemporaryDirectory() as name:
                source = Path(name, "checkpoint.safetensors")
                source.write_bytes(golden_checkpoint(zeros=zeros))
                squeeze.pack(source, path, level=level)
            sys.stdout.write(f"wrote {path.name}\n")
    path = FOLDER / "checkpoint.ulps.safetensors"
    if not path.exists():
        with tempfile.TemporaryDirectory() as name:
            base, source = Path(name, "base.safetensors"), Path(name, "checkpoint.safetensors")
            base.write_bytes(golden_checkpoint())
            source.write_bytes(golden_checkpoint(steps=3))
            squeeze.pack(source, path, base=base)
        sys.stdout.write(f"wrote {path.name}\n")


if __name__ == "__main__":
    main()
