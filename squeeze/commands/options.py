"""Options that several commands share, and the kinds of value they take."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., None]


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, with K, M or G for powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        digits, shift = value, 0
        if value[-1:].upper() in ("K", "M", "G"):
            digits, shift = value[:-1], 10 * (1 + "KMG".index(value[-1].upper()))
        if not (digits.isascii() and digits.isdigit()):
            self.fail(f"{value!r} is not a size such as 65536, 64K or 4M", param, ctx)
        return int(digits) << shift


class Range(click.ParamType):  # type: ignore[type-arg]
    """A:B, a range of bytes of which either end may be empty."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int | None]:
        if isinstance(value, tuple):
            return value
        first, colon, last = value.partition(":")
        if not colon:
            self.fail(f"{value!r} is not a range such as 100:200, 100: or :200", param, ctx)
        start = Size().convert(first, param, ctx) if first else 0
        end = Size().convert(last, param, ctx) if last else None
        if end is not None and end < start:
            self.fail(f"{value!r} ends before it starts", param, ctx)
        return start, end


def levels(command: Command) -> Command:
    """-1 to -9 and --level N; the command gets the list `levels` in the order given."""
    for n in range(1, 10):
        command = click.option(
            f"-{n}", f"level{n}", flag_value=n, type=int, hidden=True, expose_value=False, callback=_note_level
        )(command)
    return click.option(
        "--level",
        metavar="N",
        type=int,
        expose_value=False,
        callback=_note_level,
        help="From 1 (fast) to 9 (small); -1 to -9 for short.",
    )(command)


def _note_level(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
    if value is not None:
        ctx.params.setdefault("levels", []).append(int(value))


def several(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """All of them, as one decorator; `--help` lists them in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


reading = several(
    click.argument("files", nargs=-1, metavar="[FILE]..."),
    click.option("-r", "--recursive", is_flag=True, help="Take every file in the folders named."),
    click.option(
        "-T",
        "--threads",
        metavar="N",
        type=click.IntRange(0),
        help="Threads; 0 for one a core, which -7 to -9 take anyway; otherwise 1.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
    click.option("-v", "--verbose", is_flag=True, help="Say what became of each file."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object a file."),
)

model = click.option(
    "--model", type=click.Path(path_type=Path), help="Language model of -7 to -9: a .gguf file, a folder, or smollm2."
)

prior = click.option(
    "--prior",
    type=click.Path(path_type=Path),
    help="What `squeeze train` learned from files like these; needed again to decompress.",
)

writing = several(
    click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file."),
    click.option("-c", "--stdout", is_flag=True, help="Write to standard output."),
    click.option("-k", "--keep", "rm", flag_value=False, type=bool, default=False, help="Keep the source (default)."),
    click.option("--rm", "rm", flag_value=True, type=bool, help="Delete the source once its result is written."),
    click.option("-f", "--force", is_flag=True, help="Overwrite files, and take links and special files."),
    reading,
)
