"""What stands below a table: when, at which commit, on what and by which command its rows were measured."""

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]
_WORDS = {"avx512f": "AVX-512", "avx512_vnni": "VNNI", "amx_int8": "AMX", "avx2": "AVX2"}


def lines(records: Iterable[Record], commands: bool = True) -> list[str]:
    """A line for each machine, with the commands; rows that were carried over from earlier docs have their own."""
    groups: dict[tuple[bool, str], list[Record]] = {}
    for record in records:
        groups.setdefault((bool(record.get("carried")), machine(record["machine"])), []).append(record)
    return [line(carried, on, group, commands) for (carried, on), group in sorted(groups.items())]


def line(carried: bool, on: str, records: Sequence[Record], commands: bool) -> str:
    dates = sorted({record["date"] for record in records})
    commits = dict.fromkeys(record["commit"] for record in sorted(records, key=lambda one: one["date"]))
    said = ", ".join(dict.fromkeys(f"`{record['command']}`" for record in records))
    when = day(dates[0]) if len(dates) == 1 else f"{day(dates[0])} to {day(dates[-1])}"
    what = "Carried over from the table of" if carried else "Measured on"
    begun = f"{what} {when} ({', '.join(commits)}), {on}"
    return f"*{begun}:* {said}" if commands else f"*{begun}.*"


def day(date: str) -> str:
    found = datetime.date.fromisoformat(date)
    return f"{found.day} {found:%B %Y}"


def machine(known: dict[str, Any]) -> str:
    words = [word for flag, word in _WORDS.items() if flag in known["flags"]]
    if "AVX-512" in words:
        words.remove("AVX2") if "AVX2" in words else None
    name = known["cpu"].replace("(R)", "").replace("(TM)", "").removesuffix(" Processor")
    parts = [f"{name} with {' and '.join(words)}" if words else name]
    parts += [f"{known['cores']} cores"] if "cores" in known else []
    parts += [known[key] for key in ("gpu", "note") if key in known]
    return ", ".join(parts)
