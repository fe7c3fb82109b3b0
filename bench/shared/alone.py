"""Rows that are measured in a process of their own, so that what hangs or breaks the device ends alone."""

import argparse
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from bench.entries import gpus
from bench.entry import Row

__all__ = ["measured", "row_of"]


def measured(work: Callable[..., Iterator[Row]], seconds: float, *given: Any) -> Iterator[Row]:
    """The rows that `work(*given)` yields, each within so many seconds; and where it ended early, one whose status says
    why."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sending, work, given), daemon=True)
    process.start()
    sending.close()
    try:
        while receiving.poll(seconds):
            row = receiving.recv()
            if row is None:
                return
            yield row
        yield {"status": f"failed: took more than {seconds:g} s"}
    except EOFError:
        process.join()
        yield {"status": f"failed: the process ended with {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def row_of(name: str, about: Row, work: Callable[..., Iterator[Row]], options: argparse.Namespace) -> Iterator[Row]:
    """The row of `work(options)`, with what it is about, unless the benchmark of this name has it, or there is no
    device for it. Where it fails, that is an error as well."""
    if about["device"] is None or (not options.again and gpus.is_kept(name, about, options)):
        yield about | {"status": gpus.NO_GPU if about["device"] is None else gpus.KEPT}
        return
    for row in measured(work, options.seconds, options):
        yield about | row
        if "failed" in row["status"]:
            raise SystemExit(f"Error: {row['status']}")


def _send(sending: Connection, work: Callable[..., Iterator[Row]], given: tuple[Any, ...]) -> None:
    """The rows, and None after the last."""
    for row in work(*given):
        sending.send(row)
    sending.send(None)
