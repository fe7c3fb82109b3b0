"""Runs over many files by the workers of a cluster, as a page shows them."""

from collections.abc import Sequence
from typing import Any

from squeeze.recipes.reports.shown import Shown, parts_of

__all__ = ["of_clusters"]


def of_clusters(records: Sequence[dict[str, Any]]) -> list[Shown]:
    return [_run(record) for record in records]


def _run(record: dict[str, Any]) -> Shown:
    raw, coded, seconds = record["raw_size"], record["coded_size"], record["seconds"]
    more = record["failed"] - len(record["failures"])
    warnings = [f"{name}: {error}" for name, error in record["failures"]]
    share = f" ({100 * coded / raw:.1f} %)" if raw else ""
    rows = [
        {"run": f"{count:,} files .{ending}", "bytes": size, "share": size / before if before else None}
        for ending, (count, before, size) in sorted(record["endings"].items(), key=lambda one: -one[1][2])
    ]
    facts = {
        "failed": f"{record['failed']:,}",
        "time": f"{seconds:.0f} s",
        "speed": f"{raw / 1e6 / seconds:.2f} MB/s raw" if seconds else "-",
        "processors": f"{record['processors']:g}",
        "calls": f"{record['calls']:,}",
        "calls whose worker was lost": f"{record['lost_calls']:,}",
    }
    return Shown(
        name=record["command"],
        lead=f"{record['files']:,} files: {raw:,} bytes raw, {coded:,} compressed{share}.",
        warnings=(*warnings, *([f"and {more:,} more"] if more > 0 else [])),
        facts=tuple(facts.items()),
        parts=parts_of({ending: size for ending, (_, _, size) in record["endings"].items()}, {}),
        rows=tuple(rows),
    )
