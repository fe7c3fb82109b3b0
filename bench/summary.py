"""Turns the measurements of `squeeze bench --json` into the tables of docs/benchmarks.md.

squeeze bench -1 -2 -3 --against xz,zstd,brotli,bzip2,zpaq,7z --json FILES > measured.jsonl
python bench/summary.py measured.jsonl
"""

import json
import sys
from pathlib import Path

BASELINE = "zpaq -m5"
WAYS = ("compress_seconds", "decompress_seconds")


def main(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    files = sorted(
        {row["file"] for row in rows}, key=lambda name: next(r["raw_size"] for r in rows if r["file"] == name)
    )
    tools = list(dict.fromkeys(row["tool"] for row in rows))
    cell = {(row["file"], row["tool"]): row for row in rows}
    print_table(
        ["file", "raw", *tools],
        [[Path(f).name, cell[f, tools[0]]["raw_size"], *(cell[f, t]["coded_size"] for t in tools)] for f in files]
        + [["total", *(sum(cell[f, t][key] for f in files) for t, key in total_columns(tools))]],
    )
    large = [f for f in files if cell[f, BASELINE]["raw_size"] >= 100_000]
    print(f"\nSpeed as a multiple of {BASELINE} (compressing / decompressing), files of 100 kB and more:\n")
    ours = [tool for tool in tools if tool.startswith("squeeze")]
    pairs = [(Path(f).name, {tool: cell[f, tool] for tool in tools}) for f in large]
    pairs.append(("all files", {tool: whole(rows, tool) for tool in tools}))
    print_table(
        ["file", f"{BASELINE}, MB/s", *ours],
        [[name, speeds(by[BASELINE]), *(times(by[tool], by[BASELINE]) for tool in ours)] for name, by in pairs],
    )


def total_columns(tools: list[str]) -> list[tuple[str, str]]:
    return [(tools[0], "raw_size"), *((tool, "coded_size") for tool in tools)]


def whole(rows: list[dict], tool: str) -> dict:
    """All files of one tool as if they were one."""
    return {key: sum(row[key] for row in rows if row["tool"] == tool) for key in ("raw_size", *WAYS)}


def speeds(row: dict) -> str:
    return " / ".join(f"{row['raw_size'] / 1e6 / row[way]:.2f}" for way in WAYS)


def times(row: dict, baseline: dict) -> str:
    return " / ".join(f"{baseline[way] / row[way]:.2f}" for way in WAYS)


def print_table(head: list, rows: list[list]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|---" + "|--:" * (len(head) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(f"{value:,}" if isinstance(value, int) else value for value in row) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
