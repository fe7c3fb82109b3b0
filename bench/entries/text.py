"""Text through a language model: levels 7 to 9."""

from pathlib import Path

from bench.entry import Entry, option
from bench.tables import Column, Listing, Pivot, percent

_MODEL = option("--model", type=Path, help="a .gguf file; else the bundled one")
_THREADS = option("--threads", type=int, default=2, help="(2)")
_WINDOW = option("--window", type=int, default=2048, help="tokens (2048)")
_MEASURED = option("--measured", type=int, default=40_000, help="bytes of the file (40000)")
_FILE = option("file", nargs="?", type=Path, help="else text/alice29.txt of the corpus")

SIZE = Entry(
    measures="bits per byte of the language model alone, in floats and in exact integers, and of level 9",
    minutes=5,
    key=("file", "of", "window", "what"),
    needs=("a corpus",),
    options=(_FILE, _MODEL, _THREADS, _MEASURED, _WINDOW),
    tables={
        "lm-size": Listing(
            (
                Column("what", "what"),
                Column("file", "file"),
                Column("of its bytes", "of", ","),
                Column("window, tokens", "window", ","),
                Column("bytes", "bytes", ","),
                Column("bits per byte", "bpb", ".4f"),
            )
        )
    },
)

SPEED = Entry(
    measures="tokens a second of levels 7 to 9, beside llama.cpp on the same weights in the same run",
    minutes=12,
    key=("run", "what"),
    needs=("a corpus",),
    rivals=("llama_cpp_python",),
    options=(
        option("file", nargs="?", type=Path, help="else text/enwik8.1m of the corpus"),
        _MODEL,
        _THREADS,
        option("--bytes", type=int, default=100_000, help="of the file to encode (100000)"),
        option("--decoded", type=int, default=40_000, help="bytes to decode; a 16th with one lane (40000)"),
        option("--repeat", type=int, default=3, help="turns of each, of which the medians count (3)"),
    ),
    tables={"lm-speed": Pivot((Column("of llama.cpp, one token at a time", "what"),), "run", None, "ratio", ".2f")},
)

ABLATION = Entry(
    measures="coded bytes with each part of the tokenwise mixing left out",
    minutes=15,
    key=("file", "of", "without"),
    needs=("a corpus",),
    options=(_FILE, _MODEL, _THREADS, _MEASURED, _WINDOW, option("--only", default="", help="parts named like this")),
    tables={
        "lm-ablation": Listing(
            (Column("without", "without"), Column("bytes", "bytes", ","), Column("more", percent("more")))
        )
    },
)

EXACTNESS = Entry(
    measures="the same .sqz from every number of threads, prefill size and instruction set",
    minutes=20,
    key=("way",),
    options=(
        option("file", nargs="?", type=Path, help="a text; else 20,000 bytes of Python's own documentation"),
        option("--lanes", type=int, default=8, help="(8)"),
        option("--model", help="a .gguf file; else the bundled one"),
    ),
    tables={
        "exactness": Listing(
            (
                Column("way", "way"),
                Column("SHA-256 of the .sqz", lambda row: row["sha256"][:16]),
                Column("bytes", "coded_size", ","),
                Column("decoded the file of", "decoded"),
            )
        )
    },
)

BUSY = Entry(
    measures="how long compressing a small text with verification takes, alone and beside processes that only compute",
    minutes=5,
    key=("file", "of", "level", "beside"),
    needs=("a corpus",),
    options=(
        option("file", nargs="?", type=Path, help="else text/alice29.txt of the corpus"),
        _THREADS,
        option("--measured", type=int, default=20_000, help="bytes of the file (20000)"),
        option("--levels", default="8", help="(8)"),
        option("--busy", type=int, default=3, help="processes that compute (3)"),
        option("--repeat", type=int, default=3, help="turns of each, of which the medians count (3)"),
    ),
    tables={
        "busy": Listing(
            (
                Column("level", "level"),
                Column("file", "file"),
                Column("of its bytes", "of", ","),
                Column("beside", "beside"),
                Column("compress, s", "compress", ".1f"),
                Column("of the quiet time", "ratio", ".2f"),
            )
        )
    },
)

ARM64 = Entry(
    measures="the same files of every level, .sqz and packed, here and in an arm64 Debian under qemu-user, each way",
    minutes=90,
    key=("of", "level"),
    needs=("a corpus",),
    rivals=("debootstrap", "qemu-aarch64-static"),
    options=(
        option("file", nargs="?", type=Path, help="else text/alice29.txt of the corpus"),
        option("--root", type=Path, help="where the Debian lies, or goes to; else a new folder"),
        option("--measured", type=int, default=1_000, help="bytes of the file (1000)"),
        option(
            "--levels",
            default="1,2,3,4,5,6,7,8,9,fast,runtime,archive",
            help="of a file, and of a checkpoint (1,2,3,4,5,6,7,8,9,fast,runtime,archive)",
        ),
    ),
    tables={
        "arm64": Listing(
            (
                Column("level", "level"),
                Column("of bytes", "of", ","),
                Column("bytes", "coded_size", ","),
                Column("SHA-256 of both files", lambda row: row["sha256"][:16]),
            )
        )
    },
)

LANES_SMALL = Entry(
    measures="what lanes cost small files in size, and bring in tokens a second of one thread",
    minutes=10,
    key=("file", "level", "of", "lanes"),
    needs=("a corpus",),
    options=(
        option("file", nargs="?", type=Path, help="else text/lcet10.txt of the corpus"),
        _MODEL,
        option("--level", type=int, default=8, choices=(7, 8, 9), help="(8)"),
        option("--sizes", default="5000,20000,60000,200000", help="bytes of the file (5000,20000,60000,200000)"),
        option("--lanes", default="1,2,4,8,16", help="(1,2,4,8,16)"),
        option("--decoded", type=int, default=5_000, help="bytes to decode, at most (5000)"),
    ),
    tables={
        "lanes-small": Listing(
            (
                Column("level", "level"),
                Column("bytes of text", "of", ","),
                Column("lanes", lambda row: f"{row['lanes']}, as chosen" if row["chosen"] else row["lanes"]),
                Column("bytes", "bytes", ","),
                Column("of one lane's", "ratio", ".4f"),
                Column("encode, tokens/s", "encode, tokens/s", ",d"),
                Column("decode, tokens/s", "decode, tokens/s", ",d"),
            )
        )
    },
)

ENTRIES = {
    "arm64": ARM64,
    "busy": BUSY,
    "lanes-small": LANES_SMALL,
    "lm-size": SIZE,
    "lm-speed": SPEED,
    "lm-ablation": ABLATION,
    "exactness": EXACTNESS,
}
