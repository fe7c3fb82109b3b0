"""`python -m squeeze.reader FILE.sqz`: decompression only, for archives that must open in ten years.

Levels 1 to 6 need Python, numpy, xxhash and click, and numba without machine code (numerics/prebuilt.py), but no torch,
tokenizers or network. The decoder is the one
that `squeeze decompress` runs.
"""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

import click

from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.commands import options, values
from squeeze.commands.echo import EXPECTED_ERRORS, explain, guard
from squeeze.system import files
from squeeze.system.binary import flush
from squeeze.system.extras import DISTRIBUTION
from squeeze.system.limits import Limits

__all__ = ["main"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="FILE.sqz", type=values.PATH)
@options.output()
@click.option("-c", "--stdout", is_flag=True, help="Write to standard output.")
@options.force("the file")
@options.dictionary
@options.threads
@options.limits
def main(
    source: Path,
    output: Path | None,
    stdout: bool,
    force: bool,
    dictionary: Path | str | None,
    threads: int,
    limits: Limits,
) -> None:
    """Restore FILE.sqz to FILE, with no more than levels 1 to 6 need.

    Example: python -m squeeze.reader report.txt.sqz
    """
    if output is values.STDOUT:
        output, stdout = None, True
    if output and stdout:
        raise click.UsageError("-c and -o exclude each other")
    guard()
    try:
        with files.interruptible():
            target = None if stdout else output or files.restored_name(source)
            _restore(source, target, force, dictionary, threads, limits)
    except ImportError as error:
        message = f"{source}: needs {error.name}: levels 7 to 9 take all of squeeze: pip install {DISTRIBUTION}"
        raise click.ClickException(message) from error
    except (*EXPECTED_ERRORS, KeyboardInterrupt) as error:
        raise click.ClickException(explain(error, str(source))) from error


def _restore(
    source: Path, target: Path | None, force: bool, dictionary: Path | str | None, threads: int, limits: Limits
) -> None:
    """Restore a file to `target`, or to standard output if it is None."""
    if target:
        files.check_target(target, [source], force)
    with source.open("rb") as file:
        writing: AbstractContextManager[BinaryIO]
        if target:
            writing = files.replacing(target, os.fstat(file.fileno()), force)
        else:
            writing = nullcontext(sys.stdout.buffer)
        with writing as sink:
            decompress_stream(file, sink, threads=threads or None, dictionary=dictionary, limits=limits)
            flush(sink)


if __name__ == "__main__":
    main(prog_name="python -m squeeze.reader")
