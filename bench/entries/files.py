"""Compressing files: levels 1 to 6 and whole commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path

from bench.entry import Entry, option
from bench.tables import Column, Listing, Pivot, Record, Row, markdown, mebibytes, pair, percent, significant

_RIVALS = ("xz", "zstd", "brotli", "bzip2", "zpaq", "7z", "lpaq1", "paq8px")
_README = {"enwik8.1m": "enwik8, first megabyte", "twitter.json": "twitter.json", "kennedy.xls": "kennedy.xls"}
_README_TOOLS = ("zstd -19 long", "xz -9e", "zpaq -m5", "squeeze -1", "squeeze -3", "squeeze -6", "squeeze -8")


_FILES = option("files", nargs="*", type=Path, help="else all files of the corpus")
_BELOW = option("--below", type=int, metavar="BYTES", help="leave out larger files of the corpus")
_LEVELS = "1,2,3"
_FOLDERS = f"/usr/share:/usr/lib:/etc:{get_path('purelib')}"
_AGAINST = "xz,zstd,brotli,bzip2,zpaq,7z"


def _same(*tools: str) -> dict[str, str]:
    return {tool: tool for tool in tools}


def _levels(*numbers: int) -> dict[str, str]:
    return {f"squeeze -{number}": f"-{number}" for number in numbers}


def _sizes(tools: dict[str, str], needed: str, total: str = "") -> Pivot:
    lead = Column("file", "file"), Column("raw", "raw", ",")
    return Pivot(lead, "tool", tools, "bytes", ",", order=lambda row: row["raw"], needed=needed, total=total)


@dataclass(frozen=True)
class Beside:
    """Each level beside the rival that it is meant to beat: pairs of tools."""

    pairs: tuple[tuple[str, str], ...]

    def chosen(self, records: list[Record]) -> list[Record]:
        tools = {tool for pair in self.pairs for tool in pair}
        return [record for record in records if record["row"]["tool"] in tools]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        return markdown(
            ["level", "beside", "smaller in total", "files on which it is"],
            map(self._line, [rows] * len(self.pairs), self.pairs),
        )

    def title(self, row: Row) -> str:
        return row["tool"]

    def _line(self, rows: Sequence[Row], tools: tuple[str, str]) -> list[str]:
        ours, theirs = ({row["file"]: row["bytes"] for row in rows if row["tool"] == tool} for tool in tools)
        both = [file for file in ours if file in theirs]
        sums = sum(ours[file] for file in both), sum(theirs[file] for file in both)
        if not both:
            return [*tools, "", ""]
        wins = sum(ours[file] < theirs[file] for file in both)
        return [*tools, f"{100 - 100 * sums[0] / sums[1]:.1f} %", f"{wins} of {len(both)}"]


def _speed(tools: dict[str, str], needed: str) -> Pivot:
    lead = (Column("file", "file"),)
    return Pivot(lead, "tool", tools, pair("compress", "decompress"), where=_has_times, needed=needed)


def _has_times(row: Row) -> bool:
    return row.get("compress") is not None


def _part(row: Row) -> str:
    if row["without"] == "nothing":
        return f"{row['bytes']:,} bytes, {row['seconds']:.1f} s"
    return left_out(row)


def left_out(row: Row) -> str:
    """What leaving out a part costs in bytes, and saves in time."""
    return f"{100 * row['saves']:.2f} % / {100 * row['share']:.0f} %"


SIZES = Entry(
    measures="bytes of files at each level and with other compressors, every round trip proved",
    minutes=15,
    key=("file", "tool"),
    needs=("a corpus",),
    rivals=_RIVALS,
    options=(
        _FILES,
        _BELOW,
        option("--levels", default=_LEVELS, help=f"with commas between them ({_LEVELS})"),
        option("--against", default=_AGAINST, help=f"rivals, with commas between them ({_AGAINST})"),
        option("--threads", type=int, default=1, help="of squeeze"),
    ),
    quick="--below 130000 --levels 1,3,5",
    tables={
        "sizes": _sizes(
            _levels(1, 2, 3)
            | _same("xz -9e", "zstd -19 long", "brotli -q 11", "bzip2 -9", "zpaq -m5", "lpaq1 9", "7z PPMd best"),
            "squeeze -3",
            "total",
        ),
        "sizes-deep": _sizes(
            _levels(3, 4, 5, 6) | _same("zpaq -m5", "xz -9e", "zstd -19 long", "paq8px -8"), "squeeze -6"
        ),
        "sizes-beside": Beside(
            (
                *(("squeeze -1", "xz -9e"), ("squeeze -2", "7z PPMd best"), ("squeeze -3", "zpaq -m5")),
                *(("squeeze -3", "lpaq1 9"), ("squeeze -6", "zpaq -m5"), ("squeeze -6", "paq8px -8")),
            )
        ),
        "sizes-few": Pivot(
            (Column("", "tool"),),
            "file",
            _README,
            "bytes",
            ",",
            where=lambda row: row["tool"] in _README_TOOLS,
            order=lambda row: _README_TOOLS.index(row["tool"]),
            top=("as it is", "raw"),
        ),
    },
)

_SPEED = (
    _FILES,
    _BELOW,
    option("--levels", default=_LEVELS, help=f"with commas between them ({_LEVELS})"),
    option("--base", default="zpaq", help="the rival whose speed is 1 (zpaq)"),
    option("--against", default="", help="other rivals, with commas between them"),
    option("--runs", type=int, default=1, help="turns of each tool, of which the shortest times count"),
)


def _by_pair(rows: Sequence[Row]) -> list[Row]:
    """The rows of several runs, of a pair of levels each, as one."""
    pairs: dict[tuple[int, int], Row] = {}
    for row in rows:
        pair = pairs.setdefault((row["lower"], row["higher"]), row | {"files": 0, "larger": 0, "worst": 0.0})
        words = row["file"].partition(", ")[2] or row["file"]  # "50 after the first 100", "all 200, 12 encoded"
        pair["files"] += int(next(word for word in words.split() if word.isdigit()))
        pair["larger"] += row["larger"]
        pair["worst"] = max(pair["worst"], row["worst"])
    return list(pairs.values())


MONOTONE = Entry(
    measures="whether a level is larger than the one below, by more than 0.1 % and 32 bytes, on files of every kind",
    minutes=40,
    key=("file", "lower", "higher"),
    options=(
        _FILES,
        option("--folder", type=Path, default=Path("/usr"), help="else files below this one"),
        option("--count", type=int, default=200, help="how many of those"),
        option("--skip", type=int, default=0, help="after so many, which another run checks"),
        option("--first", type=int, default=100_000, help="bytes of a file that count"),
        option("--levels", default="1,2,3,4,5,6"),
        option("--encoded", type=int, default=4, help="of the longest files, in hexadecimal, base64 and EBCDIC, too"),
    ),
    quick="--count 4 --first 2000 --levels 1,2,3,4 --encoded 1",
    tables={
        "monotone": Listing(
            (
                Column("level", lambda row: f"-{row['higher']}"),
                Column("beside", lambda row: f"-{row['lower']}"),
                Column("files", "files"),
                Column("larger", "larger"),
                Column("largest share of the lower level's bytes", "worst", ".3f"),
            ),
            where=lambda row: "monotone" in row,
            prepare=_by_pair,
        )
    },
)

NEVER_LARGER = Entry(
    measures="whether a file is larger than xz -9e makes it, by more than 32 bytes: of the machine, and made ones",
    minutes=40,
    key=("kind", "level"),
    keeps=lambda row: "kind" in row,
    options=(
        _FILES,
        option("--folders", default=_FOLDERS, help="with colons between them, where files are chosen of every kind"),
        option("--count", type=int, default=500, help="how many of those"),
        option("--most", type=int, default=200_000, help="bytes of a file that is chosen"),
        option("--made", type=int, default=100, help="files of numbers that are made from seeds"),
        option("--levels", default="3", help="with commas between them"),
    ),
    quick="--count 4 --most 3000 --made 2 --levels 1",
    tables={
        "never-larger": Listing(
            (
                Column("files", "kind"),
                Column("how many", "files"),
                Column("level", lambda row: f"-{row['level']}"),
                Column("bytes", "bytes", ","),
                Column("xz -9e", "xz -9e", ","),
                Column("larger by more than 32 bytes", "larger"),
                Column("by how many at most", "worst"),
            ),
            order=lambda row: (row["level"], row["kind"]),
        )
    },
)

NEWER = Entry(
    measures="files of your own, or their beginnings, beside what another squeeze makes of them: mean ratio, and worst",
    minutes=0,
    key=("name", "of", "level"),
    keeps=lambda row: bool(row.get("name")),
    options=(
        option("files", nargs="+", type=Path, help="such as texts newer than the corpus of either"),
        option(
            "--against",
            type=Path,
            required=True,
            metavar="PYTHON",
            help="an interpreter that has the other squeeze, or a checkout of it, which this interpreter runs",
        ),
        option("--levels", default="5", help="with commas between them (5)"),
        option(
            "--prefixes", default="", metavar="BYTES", help="first so many bytes, such as 2000,10000,50000; else all"
        ),
        option("--name", default="", help="what the files are; means of files with a name are kept"),
    ),
    tables={
        "newer": Listing(
            (
                Column("files", "name"),
                Column("so many", "files"),
                Column("bytes of each", lambda row: "all" if row["of"] == "all" else f"the first {row['of']:,}"),
                Column("level", lambda row: -row["level"]),
                Column("of the older one's, mean", percent("mean ratio", 1)),
                Column("worst", percent("worst", 1)),
            ),
            order=lambda row: (row["name"], row["level"], str(row["of"]) == "all", row["of"]),
        )
    },
)

SPEED = Entry(
    measures="speed of levels on files of 100 kB and more, as multiples of zpaq's in the same run",
    minutes=10,
    key=("file", "tool"),
    needs=("a corpus",),
    rivals=_RIVALS,
    options=_SPEED,
    quick="--below 130000",
    tables={
        "speed": _speed(_levels(1, 2, 3), "squeeze -3"),
        "speed-deep": _speed(_levels(4, 5, 6), "squeeze -6"),
    },
)

PLANE = Entry(
    measures="bytes beside speed on one file, of all levels and rivals in one run, for the plot",
    minutes=10,
    key=("file", "tool"),
    needs=("a corpus",),
    rivals=_RIVALS,
    options=_SPEED,
    tables={
        "plane": Listing(
            (
                Column("tool", "tool"),
                Column("bits per byte", lambda row: 8 * row["bytes"] / row["raw"], ".3f"),
                Column("compression speed, x zpaq -m5", significant("compress", 3)),
                Column("decompression speed, x zpaq -m5", significant("decompress", 3)),
                Column("compression, MB/s", significant("compress MB/s", 2)),
                Column("decompression, MB/s", significant("decompress MB/s", 2)),
            ),
            order=lambda row: -row["bytes"],
        )
    },
    module="speed",
)

THREADS = Entry(
    measures="what a second thread brings to compressing a file of one block at levels 5 and 6",
    minutes=3,
    key=("file", "level", "verified"),
    needs=("a corpus",),
    options=(
        option("file", nargs="?", type=Path, help="else text/enwik8.1m of the corpus"),
        option("--levels", default="5,6", help="with commas between them"),
        option("--bytes", type=int, default=1_000_000, help="from its start"),
        option("--runs", type=int, default=2, help="turns of each, of which the shortest times count"),
    ),
    quick="--bytes 20000 --runs 1",
    tables={
        "threads": Listing(
            (
                Column("level", lambda row: -row["level"]),
                Column("proved", lambda row: "yes" if row["verified"] else "no"),
                Column("one thread, KB/s", "KB/s", ".1f"),
                Column("two threads, x one", "gain", ".2f"),
            ),
            order=lambda row: (row["level"], row["verified"]),
        )
    },
)

MEMORY = Entry(
    measures="peak resident memory of compressing and decompressing at each level",
    minutes=8,
    key=("file", "level", "threads"),
    needs=("a corpus",),
    options=(
        option("file", nargs="?", type=Path, help="else text/enwik8.1m of the corpus"),
        option("--levels", default="1,2,3,4,5,6", help="with commas between them"),
        option("--threads", type=int, default=1, help="each needs its own memory"),
    ),
    tables={
        "memory": Listing(
            (
                Column("file", "file"),
                Column("level", lambda row: -row["level"]),
                Column("compressing, MiB", mebibytes("compress")),
                Column("decompressing, MiB", mebibytes("decompress")),
            ),
            order=lambda row: (row["raw"], row["level"]),
        )
    },
)

ABLATE = Entry(
    measures="what each part of a level from 4 to 6 brings, and what time it takes",
    minutes=12,
    key=("file", "level", "of", "without"),
    keeps=lambda row: "dictionary" not in row,
    needs=("a corpus",),
    options=(
        option("file", nargs="?", type=Path, help="else text/enwik8.1m of the corpus"),
        option("--level", type=int, default=6, choices=(4, 5, 6), help="(6)"),
        option("--bytes", type=int, default=200_000, help="how many of the file, from its start (200000)"),
        option("--each", action="store_true", help="every context alone"),
        option("--dictionary", type=Path, metavar="FILE", help="its level, and what each part of it brings, instead"),
        option("--only", default="", help="only parts whose name contains this"),
    ),
    quick="--bytes 30000 --level 4",
    tables={
        "ablate": Pivot(
            (Column("left out", "without"),),
            lambda row: (row["file"], row["level"]),
            {
                ("enwik8.1m", 6): "enwik8 at -6",
                ("enwik8.1m", 5): "enwik8 at -5",
                ("bash.elf", 6): "bash.elf at -6",
            },
            _part,
        )
    },
)


ENTRIES = {
    "sizes": SIZES,
    "monotone": MONOTONE,
    "never-larger": NEVER_LARGER,
    "newer": NEWER,
    "speed": SPEED,
    "plane": PLANE,
    "threads": THREADS,
    "memory": MEMORY,
    "ablate": ABLATE,
}
