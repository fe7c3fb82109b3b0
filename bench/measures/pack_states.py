"""Bytes of the state of AdamW, as torch.save writes it in float32, packed beside zstd and xz: alone, and as the
difference from the state before. Every round trip is compared.

The run is that of pack-chain: a small Llama of bytes learns the text that Python ships.
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

import squeeze
from bench.entry import Row
from bench.measures.pack import as_process, packed_size
from bench.measures.pack_chain import training

_RIVALS = ("zstd -3", "zstd -19", "xz -6")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name, f"optimizer-{number}.pt") for number in range(options.states)]
        for path, (_, _, optimizer) in zip(paths, training(options.states, options.every), strict=True):
            torch.save(optimizer.state_dict(), path)
        last = paths[-1]
        row = {"state": "AdamW, F32", "steps between": options.every, "states": options.states}
        row |= {"raw": last.stat().st_size, "squeeze": packed_size(last, "runtime")}
        row |= {"archive": packed_size(last, "archive"), "difference": difference(paths[-2], last)}
        yield row | {rival: as_process(last, rival) for rival in _RIVALS if shutil.which(rival.split()[0])}


def difference(before: Path, path: Path) -> int:
    """Bytes of the last as the difference from the one before."""
    packed, back = path.with_suffix(".difference.pt"), path.with_suffix(".back.pt")
    squeeze.pack(path, packed, base=before)
    squeeze.unpack(packed, back, base=before)
    if back.read_bytes() != path.read_bytes():
        raise SystemExit(f"Error: {path}: the round trip changed the bytes")
    return packed.stat().st_size
