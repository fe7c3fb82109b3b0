"""What one begins with: the installation, and demos."""

from bench.entry import Entry, Row
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
                Column("seconds of a processor", "processor", ".1f"),
            ),
            where=lambda row: "bytes" in row or "processor" in row,
        )
    },
)

DEMO = Entry(measures="a text compressed, tested, restored and compared, beside what else is installed", minutes=1)

DEMO_MODEL = Entry(measures="the bundled model imported, quantised to 4 bits and measured, with a page", minutes=6)

ENTRIES = {
    "demo": DEMO,
    "install": INSTALL,
    "demo-model": DEMO_MODEL,
}
