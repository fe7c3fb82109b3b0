"""What one begins with: the installation, and demos."""

from bench.entry import Entry, Row, option
from bench.tables import Column, Listing


def _megabytes(row: Row) -> float | None:
    return row["bytes"] / 1e6 if "bytes" in row else None


INSTALL = Entry(
    measures="the core installation: bytes on the disk by package, seconds of `pip install`, start of a command",
    minutes=3,
    key=("part",),
    needs=("a package index",),
    tables={
        "install": Listing(
            (
                Column("part", "part"),
                Column("MB", _megabytes, ",.1f"),
                Column("CPU-s", "processor", ".1f"),
            ),
            where=lambda row: "bytes" in row or "processor" in row,
        )
    },
)

START = Entry(
    measures="the whole process that compresses a small text and proves it, by level",
    minutes=1,
    key=("program", "of"),
    needs=("a corpus",),
    options=(
        option("--levels", default="1,3,5,6,8", help="with commas between them (1,3,5,6,8)"),
        option("--measured", type=int, default=2048, metavar="BYTES", help="of the text, from its start (2048)"),
        option(
            "--dictionary",
            type=int,
            default=1 << 20,
            metavar="BYTES",
            help="of text in a dictionary, whose first and second use are timed (1048576); 0 for none",
        ),
        option("--repeat", type=int, default=7, help="runs of each, of which the median counts (7)"),
    ),
    tables={
        "start": Listing(
            (
                Column("program", "program"),
                Column("seconds", "seconds", ".2f"),
                Column("CPU-s", "processor", ".2f"),
                Column("bytes", "bytes", ",d"),
            )
        )
    },
)

DEMO = Entry(measures="a text compressed, tested, restored and compared, beside what else is installed", minutes=1)

DEMO_MODEL = Entry(measures="the bundled model imported, quantised to 4 bits and measured, with a page", minutes=6)

ENTRIES = {
    "demo": DEMO,
    "install": INSTALL,
    "start": START,
    "demo-model": DEMO_MODEL,
}
