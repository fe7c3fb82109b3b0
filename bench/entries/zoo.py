"""Architectures: what works with a tiny model of each."""

from pathlib import Path

from bench.entry import Entry, Row, option
from bench.tables import Column, Listing

CELLS = (
    *("pack", "quantize", "quantize, own format", "prune 2:4", "factorize"),
    *("kv-eval", "generate", "generate --kv", "GGUF"),
)


def _mark(cell: str) -> Column:
    def shown(row: Row) -> str:
        if "unmade" in row:
            return ""
        kind = row[cell].partition(":")[0]
        return {"works": "yes", "refused": "no"}.get(kind, kind)

    return Column(cell, shown)


def _why(row: Row) -> str:
    """The refusals, each once, with the cells that it is of."""
    if "unmade" in row:
        return f"not tried: {row['unmade']}"
    reasons: dict[str, list[str]] = {}
    for cell in CELLS:
        if row[cell] != "works" and cell != "GGUF":
            reasons.setdefault(row[cell].partition(": ")[2], []).append(cell)
    return "; ".join(f"{', '.join(cells)}: {reason}".replace("|", "\\|") for reason, cells in reasons.items())


ENTRIES = {
    "zoo": Entry(
        measures="what works with a tiny model of every decoder that transformers has: works, refused or fault",
        minutes=45,
        key=("architecture",),
        options=(
            option("architectures", nargs="*", metavar="ARCHITECTURE", help="(all)"),
            option("--work", type=Path, help="a folder for models (a temporary one)"),
        ),
        tables={
            "architectures": Listing(
                (Column("architecture", "architecture"), *map(_mark, CELLS), Column("why not", _why)),
                order=lambda row: row["architecture"],
            )
        },
    )
}
