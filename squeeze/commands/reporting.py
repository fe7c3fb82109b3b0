"""What the commands that code a checkpoint share: their progress, and what is said of the sizes in the end."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands.echo import echo
from squeeze.commands.progress import Tick, bar, is_shown
from squeeze.system import machine

if TYPE_CHECKING:
    from squeeze.packing.pack import Totals


@contextmanager
def reporting(
    source: Path,
    target: Path | None,
    command: str,
    *,
    threads: int,
    quiet: bool,
    as_json: bool,
    page: Path | None = None,
) -> Iterator[tuple[dict[str, Any], Callable[["Totals"], None]]]:
    """Options for a library call, and a function that says what came of it."""
    started = time.perf_counter()

    def done(totals: "Totals") -> None:
        seconds = time.perf_counter() - started
        if as_json or page:
            record: dict[str, Any] = {"command": command, "input": str(source)}
            if target:
                record["output"] = str(target)
            record |= {"raw_size": totals.raw, "coded_size": totals.coded, "seconds": round(seconds, 3)}
            record |= {"left_out": totals.left_out} if totals.left_out else {}
            record |= {"notes": totals.notes} if totals.notes else {}
            packed = target if target and command == "pack" else source
            tensors = {"tensors": _tensors(packed)} if page or command == "pack" else {}
            if as_json:
                click.echo(json.dumps(record | (tensors if command == "pack" else {})))
            write_page(page, [record | tensors])
        for line in () if quiet else totals.left_out:
            echo(f"Warning: {line}; left out", err=True)
        for line in () if quiet else totals.notes:
            echo(f"Note: {line}", err=True)
        if not quiet and sys.stderr.isatty():
            percent = f" ({100 * totals.coded / totals.raw:.2f} %)" if totals.raw else ""
            sizes_text = f"{totals.raw} bytes, packed {totals.coded}{percent}"
            echo(f"{source}: {sizes_text}, {seconds:.1f} s", err=True)

    with checkpoint_bar(source, quiet, as_json) as tick:
        yield {"threads": threads or machine.available_cores(), "progress": tick}, done


def write_page(path: Path | None, records: Sequence[dict[str, Any]]) -> None:
    """A page of what a command found, in the form of its --json, if one is asked for."""
    if path is not None:
        from squeeze.recipes.reports.page import shown, write

        write(path, shown(records))


def _tensors(packed: Path) -> list[dict[str, Any]]:
    from squeeze.recipes.measure.inspect import packed_sizes

    return packed_sizes(packed)


def checkpoint_bar(source: Path, quiet: bool, as_json: bool) -> AbstractContextManager[Tick]:
    """As progress.bar, of a checkpoint's raw bytes."""
    from squeeze.packing.folder import raw_size

    total = raw_size(source) if is_shown(quiet, as_json) else None
    return bar(source.name, total, quiet=quiet, as_json=as_json)
