"""Measure what each transform of programs brings: the bytes of files with all of them, and with one left out."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import squeeze
from bench.measure import Measure, Row, option
from bench.shared.texts import find_file
from bench.tables import Column, Listing
from squeeze.codecs.parse.finding import node_of
from squeeze.codecs.parse.program import plan
from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.room import Room
from squeeze.codecs.parse.tree import Child, Node
from squeeze.codecs.stream.decoding import decode_block
from squeeze.codecs.stream.encoding import encode_block
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.stream.settings import resolve_settings

_FILE, _LEVEL = "bash.elf", 3
_CODE = (plan.X86, plan.X86_64, plan.ARM64, plan.RISCV)
_WITHOUT = {
    "all transforms": (),
    "without absolute operands": _CODE,
    "without differences in frames": (plan.FRAMES,),
    "without deriving `.eh_frame_hdr`": (plan.FRAME_INDEX,),
    "without deriving `.gnu.hash`": (plan.HASH,),
    "without differences in relocations": (plan.RELOCATIONS,),
    "sections alone": (*_CODE, plan.FRAMES, plan.FRAME_INDEX, plan.HASH, plan.RELOCATIONS, plan.ROWS),
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the bytes of each file for each choice of transforms; every result is decoded and compared."""
    for path in map(find_file, options.files):
        data = path.read_bytes()
        about = {"file": path.name, "level": _LEVEL}
        yield about | {"transforms": "closed", "bytes": len(squeeze.compress(data, _LEVEL, parse=False))}
        for transforms, without in _WITHOUT.items():
            yield about | {"transforms": transforms, "bytes": opened_size(data, without)}


def opened_size(data: bytes, without: tuple[int, ...]) -> int:
    """Return the bytes of the block of a program whose parts of some kinds stay as they are."""
    found = Program(without).open(data, 0, Room(2 * len(data)))
    if found is None:
        raise SystemExit("Error: a file is not a program")
    settings, _ = resolve_settings(_LEVEL, 1, None, None, LanguageOptions())
    child = Child(0, Program.kind, Node(found.content, (), None, found.regions), found)
    raw = np.frombuffer(data, np.uint8)
    coded = encode_block(raw, node_of(raw, [child]), settings, verify=False)
    if coded is None or decode_block(coded, raw.size, settings).tobytes() != data:
        raise SystemExit("Error: a program did not come back")
    return len(coded.payload)


MEASURE = Measure(
    rows,
    key=("file", "transforms"),
    needs=("a corpus",),
    time=3,
    options=(option("files", nargs="*", type=Path, default=[Path(_FILE)], help=f"files, default: {_FILE}"),),
    tables={
        "programs": Listing(
            *(Column("transforms", "transforms"), Column(_FILE, "bytes", ",")),
            where=lambda row: row["file"] == _FILE,
        )
    },
)
