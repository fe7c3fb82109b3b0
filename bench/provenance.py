"""What stands below a table: when, at which commit, on what and by which command its rows were measured."""

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]
_WORDS = {"avx512f": "AVX-512", "avx512_vnni": "VNNI", "amx_int8": "AMX", "avx2": "AVX2"}


def lines(records: Iterable[Record]) -> list[str]:
    """A line for each command and machine; rows that were carried over from earlier docs are said to be."""
    groups: dict[tuple[str, str, bool], list[Record]] = {}
    for record in records:
        group = record["command"], machine(record["machine"]), bool(record.get("carried"))
        groups.setdefault(group, []).append(record)
    return [line(*group, found) for group, found in groups.items()]


def line(command: str, on: str, carried: bool, records: Sequence[Record]) -> str:
    dates = sorted({record["date"] for record in records})
    commits = list(dict.fromkeys(record["commit"][:8] for record in sorted(records, key=lambda one: one["date"])))
    when = day(dates[0]) if len(dates) == 1 else f"{day(dates[0])} to {day(dates[-1])}"
    what = "Carried over from" if carried else "Measured on"
    return f"*{what} {when} ({', '.join(commits)}), {on}:* `{command}`"


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
