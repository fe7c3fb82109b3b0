"""The table that everyone asks for: compressors beside each other, on files of several kinds."""

from collections.abc import Sequence

from bench.entry import Entry, option
from bench.tables import MACHINE, Column, Listing, Pivot, Row, significant

_GENERAL = ("zstd -19 long", "OpenZL 19", "bzip2 -9", "brotli -q 11", "xz -9e", "7z PPMd best")
_MIXING = ("zpaq -m5", "lpaq1 9", "paq8px -8", "cmix")
_NEURAL = ("StateSMix", "Nacrith (SmolLM2-135M)", "ts_zip (rwkv 169M)")
_TOOLS = (*_GENERAL, *_MIXING, *_NEURAL, *(f"squeeze -{level}" for level in range(1, 10)))
_FILES = {
    "alice29.txt": "alice29",
    "enwik8.1m": "enwik8, first MB",
    "llm-changelog-2026.md": "text newer than the models",
    "asyncio of Python 3.11": "Python",
    "twitter.json": "JSON",
    "dpkg.log": "log",
    "bash.elf": "program",
    "kennedy.xls": "table",
    "four small files": "four small files",
}
_LEVELS = {  # what a level is, and what it is for
    1: ("context mixing, few contexts", "the least time"),
    2: ("context mixing, more contexts", "the least time"),
    3: ("context mixing, larger tables; the default", "everything"),
    4: ("many more contexts, two layers of mixing", "archives"),
    5: ("as -4, and a small pretrained network", "small files, archives"),
    6: ("a small pretrained network, and the most contexts", "small files, archives"),
    7: ("text: a language model, window of 512 tokens; all else as -6", "English text"),
    8: ("text: a language model, window of 1,024 tokens; all else as -6", "English text"),
    9: ("text: a language model, window of 4,096 tokens; all else as -6", "English text"),
}
# What is known of a file that another machine decodes.
_ELSEWHERE = {"squeeze": "shown", "ts_zip": "claimed", "StateSMix": "floats", "Nacrith": "floats", "cmix": "floats"}


def _bytes(row: Row) -> str | None:
    if "lost" in row:
        return "lost"
    return f"{row['bytes']:,}*" if "published" in row else f"{row['bytes']:,}"


def _speed(way: str) -> Column:
    return Column(f"{way}ion speed, x zpaq -m5", significant(way, 3))


def _beside_zpaq(rows: Sequence[Row]) -> list[Row]:
    """With the speeds of zpaq as 1, where both were measured on one kind of machine."""
    base = next((row for row in rows if row["tool"] == "zpaq -m5"), None)
    if base is None:
        return []
    ways = ("compress", "decompress")
    return [
        {**row, **{way: base[f"{way} s"] / row[f"{way} s"] for way in ways}} if _is_beside(row, base) else row
        for row in rows
    ]


def _is_beside(row: Row, base: Row) -> bool:
    return bool(row.get(MACHINE) == base.get(MACHINE))


def _memory(way: str) -> Column:
    return Column(f"{way}ion, MB", f"{way} MB", ",.0f")


def _elsewhere(row: Row) -> str:
    return _ELSEWHERE.get(row["tool"].split()[0], "integers")


def _order(row: Row) -> int:
    return _TOOLS.index(row["tool"])


def _costs(file: str) -> Listing:
    return Listing(
        (
            Column("tool", "tool"),
            Column("bits per byte", lambda row: 8 * row["bytes"] / row["raw"], ".3f"),
            *(_speed("compress"), _speed("decompress"), _memory("compress"), _memory("decompress")),
            Column("on another machine", _elsewhere),
        ),
        where=lambda row: row["file"] == file and "compress s" in row and "lost" not in row,
        order=_order,
        prepare=_beside_zpaq,
    )


def _level(row: Row) -> int:
    """That of a row of squeeze; 0 of others."""
    return int(row["tool"].rpartition("-")[2]) if row["tool"].startswith("squeeze -") else 0


def _is_of_its_level(row: Row) -> bool:
    """On the file that levels are compared on: a megabyte, or less where a language model reads it."""
    return _level(row) > 0 and row["file"] == ("alice29.txt" if _level(row) > 6 else "enwik8.1m")


def _rate(way: str) -> Column:
    return Column(f"{way}ion, MB/s", lambda row: significant("rate", 2)({"rate": row["raw"] / row[f"{way} s"] / 1e6}))


LEVELS = Listing(
    (
        Column("level", lambda row: f"-{_level(row)}"),
        Column("models", lambda row: _LEVELS[_level(row)][0]),
        Column("for", lambda row: _LEVELS[_level(row)][1]),
        *(_rate("compress"), _rate("decompress")),
        Column("memory on one thread, MB", "compress MB", ",.0f"),
    ),
    where=_is_of_its_level,
    order=_level,
)

PUBLIC = Entry(
    measures="compressors that people ask about, on text, code, JSON, a log, binaries and small files",
    minutes=90,
    key=("file", "tool"),
    needs=("a corpus",),
    rivals=("zstd", "xz", "brotli", "bzip2", "7z", "zpaq", "lpaq1", "paq8px", "cmix", "openzl", "statesmix"),
    options=(
        option("--only", default="", help="files whose name contains this"),
        option("--without", default="", help="tools to leave out, with commas between them"),
        option("--slow", type=int, default=200_000, help="bytes up to which slow tools take a file (200000)"),
        option("--again", action="store_true", help="measure what has a result, too"),
    ),
    tables={
        "public": Pivot((Column("tool", "tool"),), "file", _FILES, _bytes, order=_order),
        "public-costs": _costs("enwik8.1m"),
        "public-slow": _costs("alice29.txt"),
        "levels": LEVELS,
    },
)

ENTRIES = {"public": PUBLIC}
