"""Progress and results of the commands that pack, unpack and verify a checkpoint."""

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


_NEXT = {"pack": "; next: squeeze verify {0}, or squeeze unpack {0} OUT", "verify": "; OK"}  # what follows a result


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
    """Yield arguments for a library call, and a function that prints its result.

    Args:
        source: The checkpoint.
        target: The result; None if nothing is written.
        command: The name of the command.
        threads: Number of threads; 0 means one per core.
        quiet: Whether only errors are printed.
        as_json: Whether the result is printed as JSON.
        page: The page to write, or None.
    """
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
            arrow = f"{totals.raw:,} bytes, packed {totals.coded:,}{percent}, {seconds:.1f} s"
            echo(f"{target or source}: {arrow}{_NEXT.get(command, '').format(target)}", err=True)

    with checkpoint_bar(source, quiet, as_json) as tick:
        yield {"threads": threads or machine.available_cores(), "progress": tick}, done


def write_page(path: Path | None, records: Sequence[dict[str, Any]]) -> None:
    """Write a page of JSON records of a command, unless the path is None."""
    if path is not None:
        from squeeze.recipes.reports.page import shown, write

        write(path, shown(records))


def _tensors(packed: Path) -> list[dict[str, Any]]:
    from squeeze.recipes.measure.inspect import packed_sizes

    return packed_sizes(packed)


def checkpoint_bar(source: Path, quiet: bool, as_json: bool) -> AbstractContextManager[Tick]:
    """Return a progress bar over the raw bytes of a checkpoint."""
    from squeeze.packing.folder import raw_size

    total = raw_size(source) if is_shown(quiet, as_json) else None
    return bar(source.name, total, quiet=quiet, as_json=as_json)
