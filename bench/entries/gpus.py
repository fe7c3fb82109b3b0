"""Kernels for GPUs."""

import argparse
from pathlib import Path

from bench import machine, records
from bench.entry import Entry, Row, option, time
from bench.tables import Column, Listing

MEASURED, KEPT, NO_GPU = "measured", "measured before", "no GPU"  # what the status of a row may be


def is_kept(name: str, row: Row, options: argparse.Namespace) -> bool:
    """Whether a row was measured at this commit."""
    entry = ENTRIES[name]
    found = [one for one in records.load(name, options.results) if one["commit"] == machine.commit()]
    keys = [records.key_of(entry, one) for one in found if one["row"]["status"] == MEASURED]
    return records.key_of(entry, {"row": row}) in keys


def _is_new(row: Row) -> bool:
    return row["status"] not in (KEPT, NO_GPU)


def _is_measured(row: Row) -> bool:
    return bool(row["status"] == MEASURED)


_AGAIN = option("--again", action="store_true", help="measure what is measured on this device at this commit, too")
_SECONDS = option("--seconds", type=time, default=600, help="that a row may take (600)")


GPU = Entry(
    measures="every kernel on a GPU, beside torch and rivals in the same run; a run that was stopped goes on",
    minutes=20,
    key=("case", "way", "device"),
    keeps=_is_new,
    needs=("a GPU", "triton"),
    rivals=("vllm", "bitsandbytes", "nvidia-nvcomp-cu12", "dfloat11", "flash-attn"),
    options=(
        option("--only", default="", help="cases named like this, or like one of these with | between them"),
        option("--together", action="store_true", help="in one process: sooner, but a case that breaks ends all"),
        _AGAIN,
        _SECONDS,
    ),
    tables={
        "gpu": Listing(
            (
                Column("what", "case"),
                Column("way", "way"),
                Column("GPU", "device"),
                Column("us", "us", ",.1f"),
                Column("GB/s", "GB/s", ",.0f"),
                Column("times as fast as the first", "x", ".2f"),
                Column("as advised", "advised x", ".2f"),
                Column("by", "kernel"),
            ),
            where=_is_measured,
        )
    },
)

MODEL = Entry(
    measures="a packed model of random weights on a GPU beside the same in bf16: tokens a second, and memory",
    minutes=3,
    key=("blocks", "width", "tokens", "device"),
    keeps=_is_new,
    needs=("a GPU", "triton"),
    options=(
        option("--blocks", type=int, default=32, help="of the model (32)"),
        option("--width", type=int, default=4096, help="of its states (4096)"),
        option("--tokens", type=int, default=64, help="that are generated (64)"),
        option("--device", default="cuda", help="(cuda)"),
        option("--work", type=Path, metavar="FOLDER", help="has the model, or gets it (a temporary one)"),
        _AGAIN,
        _SECONDS,
    ),
    tables={
        "gpu-model": Listing(
            (
                Column("parameters", "parameters", ",d"),
                Column("tokens generated", "tokens", ",d"),
                Column("GPU", "device"),
                Column("tokens/s in bf16", "bf16, tokens/s", ".1f"),
                Column("packed", "packed, tokens/s", ".1f"),
                Column("of bf16's speed", "x", ".2f"),
                Column("of its memory", "memory, share", ".2f"),
            ),
            where=_is_measured,
        )
    },
)

FILES = Entry(
    measures="level 8 with its model on a GPU: speed both ways, and a file that a CPU decodes",
    minutes=5,
    key=("text", "bytes", "lanes", "model", "on CPU", "threads", "device"),
    keeps=_is_new,
    needs=("a GPU", "triton"),
    options=(
        option("--file", type=Path, default=None, help="a text (enwik8.10m of the corpus)"),
        option("--bytes", type=int, default=10_000_000, help="of it (10,000,000)"),
        option("--on-cpu", type=int, default=100_000, help="that the CPU decodes, too (100,000)"),
        option("--lanes", type=int, default=1024, help="(1,024)"),
        option("--model", type=Path, default=None, help="(smollm2)"),
        option("--keep", type=Path, metavar="FOLDER", help="gets what was compressed"),
        option("--threads", type=int, default=0, help="(one a core)"),
        _AGAIN,
        _SECONDS,
    ),
    tables={
        "gpu-files": Listing(
            (
                Column("text", "text"),
                Column("bytes", "of", ",d"),
                Column("lanes", "lanes", ",d"),
                Column("GPU", "device"),
                Column("compressed", "size", ",d"),
                Column("compress, KB/s", "compress, KB/s", ",.0f"),
                Column("decompress, KB/s", "decompress, KB/s", ",.0f"),
                Column("bytes that a CPU decoded", "decoded on a CPU", ",d"),
            ),
            where=_is_measured,
        )
    },
)

ENTRIES = {"gpu": GPU, "gpu-model": MODEL, "gpu-files": FILES}
