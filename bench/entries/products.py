"""Products with what is stored, and models that are loaded from it."""

from pathlib import Path

from bench.entry import Entry, Row, option
from bench.tables import Column, Listing, percent

_RUNTIME_COLUMNS = (
    Column("", "folder"),
    Column("weights and buffers", "weights, share", ".3f"),
    Column("peak at generation", "peak, share", ".3f"),
    Column("speed, relative to the original", "speed", ".2f"),
)

RUNTIME = Entry(
    measures="memory, speed and logits of a model loaded from its packed folder, beside the original",
    minutes=5,
    key=("folder", "tokens"),
    rivals=("transformers",),
    options=(
        option("model", type=Path),
        option("packed", type=Path, nargs="+", help="what `squeeze pack` made of it, at one or more levels"),
        option("--resident", type=float, default=0.5, help="a row with so much of the weights resident (0.5)"),
        option("--tokens", type=int, default=32, help="to generate (32)"),
        option("--device", default="cpu"),
        option("--threads", type=int, default=0, help="of torch; 0, the default, for one a core"),
        option("--rounds", type=int, default=3, help="in which all take turns (3)"),
    ),
    tables={
        "runtime": Listing(
            (
                *_RUNTIME_COLUMNS,
                Column("CPU time a token, relative to the original", "processor, share", ".2f"),
                Column("logits, from those in float32", percent("distance", 2)),
            )
        )
    },
)

RUNTIME_EXPERTS = Entry(
    measures="memory, speed and logits of a packed mixture of experts, with nothing and half of it resident",
    minutes=3,
    key=("folder", "tokens", "experts", "reached"),
    rivals=("transformers",),
    options=(
        option("--experts", type=int, default=24, help="of a layer (24)"),
        option("--reached", type=int, default=4, help="by a token (4)"),
        option("--tokens", type=int, default=32, help="to generate (32)"),
        option("--device", default="cpu"),
        option("--threads", type=int, default=0, help="of torch; 0, the default, for one a core"),
        option("--rounds", type=int, default=3, help="in which all take turns (3)"),
    ),
    tables={
        "runtime-experts": Listing(
            (*_RUNTIME_COLUMNS[:-1], Column("CPU time a token, relative to the original", "processor, share", ".2f"))
        )
    },
)

GPU_DECODE = Entry(
    measures="decoding speed of packed bf16 on a GPU, compared with the original first",
    minutes=3,
    key=("device", "tensor"),
    needs=("a GPU",),
    options=(
        option("paths", nargs="*", type=Path, metavar="CHECKPOINT"),
        option("--values", type=int, default=1 << 28, help="of one large tensor"),
        option(
            "--shapes",
            default="4096x4096,1024x4096,1024x4096,4096x4096,14336x4096,14336x4096,4096x14336",
            help="of a layer of Llama-3.1-8B, else",
        ),
    ),
    tables={
        "gpu-decode": Listing(
            (
                Column("tensor", "tensor"),
                Column("GPU", "device"),
                Column("ms", "milliseconds", ".3f"),
                Column("GB/s", "gigabytes_per_second", ".0f"),
            )
        )
    },
)


def _grid(row: Row) -> str:
    return f"{row['bits']} bits, {'' if row['symmetric'] else 'a'}symmetric, groups of {row['group']}"


W4A16 = Entry(
    measures="products with packed integer weights beside dense ones, on the CPU or a GPU",
    minutes=5,
    key=("device", "shape", "rows", "bits", "symmetric"),
    options=(
        option("--bits", type=int, default=4, help="(4)"),
        option("--group-size", type=int, default=128, help="(128)"),
        option("--asymmetric", action="store_true"),
        option("--rows", help="of activations, with commas between them"),
        option("--shapes", help="outputs x inputs, with commas between them"),
        option("--threads", type=int, default=1),
        option("--tune", action="store_true", help="on a GPU: try other tiles, too"),
    ),
    quick="--shapes 576x576 --rows 1,4",
    tables={
        "w4a16": Listing(
            (
                Column("O x I", "shape"),
                Column("grid", _grid),
                Column("rows", "rows"),
                Column("times as fast as float32", "x float32", ".1f"),
                Column("as bfloat16", "x bfloat16", ".1f"),
            ),
            where=lambda row: row["device"] == "cpu",
        ),
        "w4a16-gpu": Listing(
            (
                Column("O x I", "shape"),
                Column("grid", _grid),
                Column("rows", "rows"),
                Column("GPU", "device"),
                Column("times as fast as float16", "x float16", ".2f"),
                Column("codes", "order"),
                Column("by", "kernel"),
            ),
            where=lambda row: row["device"] != "cpu",
        ),
    },
)

ENTRIES = {
    "runtime": RUNTIME,
    "runtime-experts": RUNTIME_EXPERTS,
    "gpu-decode": GPU_DECODE,
    "w4a16": W4A16,
}
