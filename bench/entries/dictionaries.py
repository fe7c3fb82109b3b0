"""Trained dictionaries, and networks trained on samples, on small records."""

from pathlib import Path

from bench.entries.files import left_out
from bench.entry import Entry, option, time
from bench.tables import Column, Listing, Pivot, Row, percent


def _part_of_record(row: Row) -> str:
    if row["without"] == "nothing":
        return f"{row['bytes']:.1f} bytes, {1000 * row['seconds']:.1f} ms"
    return left_out(row)


_SETS = "events are generated, articles are of the corpus, sources of Python's standard library"
_TRAIN = option("--train", type=int, default=2000, help="records to train on, if there are so many (2000)")

ABLATE_DICTIONARY = Entry(
    measures="what the parts of a trained dictionary bring on small records, and what time they take",
    minutes=3,
    key=("set", "records", "level", "without"),
    options=(
        option("--level", type=int, default=5, choices=(4, 5, 6), help="(5)"),
        option("--records", type=int, default=100, help="to measure (100)"),
        _TRAIN,
        option("--sets", default="events,articles,sources", help=_SETS),
    ),
    quick="--level 4 --records 20 --train 200 --sets events",
    tables={
        "ablate-dictionary": Pivot(
            (Column("left out", "without"),),
            lambda row: (row["set"], row["level"]),
            {(name, 5): f"{name} at -5" for name in ("events", "articles", "sources")},
            _part_of_record,
        )
    },
)

PRIORS = Entry(
    measures="small records, each compressed alone: a trained dictionary of ours beside zstd's",
    minutes=25,
    key=("set", "records", "tool"),
    rivals=("zstd", "xz", "brotli"),
    options=(
        option("--levels", default="4,5,6", help="with commas between them (4,5,6)"),
        option(
            "--text", type=int, default=1024, metavar="KIB", help="of a larger dictionary, of the last level (1024)"
        ),
        option("--records", type=int, default=1000, help="to measure (1000)"),
        _TRAIN,
        option("--sets", default="events,articles,sources", help=_SETS),
    ),
    quick="--levels 4 --records 20 --train 200 --sets events --text 0",
    tables={
        "priors-sets": Pivot(
            (Column("tool", "tool"),),
            "set",
            None,
            lambda row: f"{row['bytes']:.1f} ({100 * row['share']:.1f} %)",
            order=lambda row: -row["bytes"],
        ),
        "priors": Listing(
            (
                Column("tool", "tool"),
                Column("records", lambda row: f"{row['records']} {row['set']} of {row['raw']:.0f} bytes"),
                Column("bytes a record", "bytes", ".1f"),
                Column("of the best zstd", percent("share", 1)),
                Column("prior or dictionary, bytes", "learned", ","),
            ),
            order=lambda row: (row["set"], -row["bytes"]),
        ),
    },
)

TRAIN_MINUTES = Entry(
    measures="small records: what `squeeze train --minutes` brings beside a dictionary, the level alone, zstd's best",
    minutes=8,
    key=("set", "records", "level", "minutes"),
    rivals=("zstd",),
    options=(
        option("--level", type=int, default=5, choices=(5, 6), help="(5)"),
        option("--minutes", type=time, default=4, help="of training for each set (4)"),
        option("--device", default="cpu", help="that trains (cpu)"),
        option("--records", type=int, default=100, help="to measure (100)"),
        _TRAIN,
        option("--sets", default="sources", help="as those of priors: events,articles,sources (sources)"),
    ),
    tables={
        "train-minutes": Listing(
            (
                Column("records", lambda row: f"{row['records']} {row['set']} of {row['raw']:.0f} bytes"),
                Column("level", lambda row: -row["level"]),
                Column("minutes", "minutes", "g"),
                Column("steps", "steps", ","),
                Column("zstd's best dictionary", "zstd", ".1f"),
                Column("the level alone", "alone", ".1f"),
                Column("with a dictionary", "dictionary", ".1f"),
                Column("and the network trained", "network", ".1f"),
                Column("of zstd's", percent("of zstd", 1)),
                Column("of the dictionary's", percent("of dictionary", 1)),
            )
        )
    },
)

TAUGHT = Entry(
    measures="what models were taught brings to prefixes of files; or dictionaries for a kind of content (--train)",
    minutes=15,
    key=("kind", "first", "level", "text"),
    options=(
        option("files", nargs="*", type=Path, help="else files of every kind below a folder"),
        option("--folder", type=Path, default=Path("/usr"), help="that one (/usr)"),
        option("--count", type=int, default=120, help="how many of those (120)"),
        option("--levels", default="1,2,3,4,5,6", help="with commas between them (1,2,3,4,5,6)"),
        option("--prefixes", default="2000,16000", help="bytes of each file (2000,16000)"),
        option("--train", type=Path, help="a folder of files that dictionaries are made of"),
        option("--ending", default=".py", help="of their names, and of those that are measured (.py)"),
    ),
    quick="--count 12 --levels 1,4 --prefixes 2000",
    tables={
        "taught": Listing(
            (
                Column("content", "kind"),
                Column("files", "files"),
                Column("first bytes", "first", ","),
                Column("level", lambda row: f"-{row['level']}"),
                Column("bytes without", "without", ","),
                Column("and with", "with", ","),
                Column("mean of the files' ratios", percent("mean ratio", 1)),
                Column("worst", percent("worst", 1)),
            ),
            where=lambda row: row["text"] is None,
            order=lambda row: (row["kind"], row["first"], row["level"]),
        ),
        "taught-texts": Listing(
            (
                Column("files", lambda row: f"{row['files']} {row['kind']}"),
                Column("first bytes", "first", ","),
                Column("level", lambda row: f"-{row['level']}"),
                Column("text of the dictionary", lambda row: f"{row['text'] >> 10} KiB" if row["text"] else "none"),
                Column("bytes without", "without", ","),
                Column("and with", "with", ","),
                Column("mean of the files' ratios", percent("mean ratio", 1)),
            ),
            where=lambda row: row["text"] is not None,
            order=lambda row: (row["kind"], row["first"], row["level"], row["text"]),
        ),
    },
)

ENTRIES = {
    "ablate-dictionary": ABLATE_DICTIONARY,
    "priors": PRIORS,
    "taught": TAUGHT,
    "train-minutes": TRAIN_MINUTES,
}
