"""What one sees: explaining files, and pages in a browser."""

from pathlib import Path

from bench.entry import Entry, option, time
from bench.tables import Column, Listing, percent

EXPLAIN = Entry(
    measures="what explaining a file costs beyond compressing it with its proof, and the sum of the bits shown",
    minutes=25,
    key=("file", "level"),
    needs=("a corpus",),
    options=(
        option("file", nargs="?", type=Path, help="else text/enwik8.1m of the corpus"),
        option("--levels", default="3,6", help="with commas between them (3,6)"),
        option("--bytes", type=int, default=1_000_000, help="how many of the file, from its start (1000000)"),
    ),
    quick="--bytes 30000 --levels 3",
    tables={
        "explain": Listing(
            (
                Column("file", "file"),
                Column("bytes", "raw", ","),
                Column("level", lambda row: -row["level"]),
                Column("compressing, s", "compress seconds", ".1f"),
                Column("explaining, s", "explain seconds", ".1f"),
                Column("page, s", "page seconds", ".1f"),
                Column("beyond compressing", percent("beyond compressing", 1)),
                Column("page, MB", lambda row: row["page bytes"] / 1e6, ".1f"),
                Column("sum of bits beside coded blocks", lambda row: f"{100 * row['sum of bits']:+.4f} %"),
            ),
            order=lambda row: (row["raw"], row["level"]),
        )
    },
)

PAGES = Entry(
    measures="how soon the pages of explain and of reports open and answer, and how smoothly text scrolls",
    minutes=5,
    key=("page",),
    needs=("a corpus", "playwright", "chromium"),
    options=(
        option("file", nargs="?", type=Path, help="else text/enwik8.10m of the corpus"),
        option("--run", type=Path, metavar="RUN.json", help="a report; else one of 30 blocks of 7 matrices"),
        option("--sizes", default="1000000,5000000", help="bytes that are explained, with commas between them"),
        option("--level", type=int, default=1, help="at which they are explained (1)"),
        option("--runs", type=int, default=3, help="the shortest of so many times to open counts (3)"),
        option("--seconds", type=time, default=4.0, help="of scrolling (4)"),
    ),
    tables={
        "pages": Listing(
            (
                Column("page", "page"),
                Column("MB", lambda row: row["bytes"] / 1e6, ".1f"),
                Column("opens, s", "open seconds", ".2f"),
                Column("CPU-s", "processor seconds", ".2f"),
                Column("answers, ms", "answer ms", ".1f"),
                Column("slowest, ms", "slowest ms", ".1f"),
                Column("frames a second", lambda row: row.get("frames a second")),
                Column("CPU-ms a frame", lambda row: row.get("frame ms")),
            ),
            order=lambda row: (row["page"].startswith("explain"), row["bytes"]),
        )
    },
)

ENTRIES = {"explain": EXPLAIN, "pages": PAGES}
