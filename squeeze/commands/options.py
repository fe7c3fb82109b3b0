"""Options that several commands share, each declared once, and the kinds of value they take."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from squeeze.codecs.stream.levels import LEVELS
from squeeze.codecs.stream.resources import BUILT_IN
from squeeze.errors import OptionError, SqueezeError
from squeeze.options import MOST_MINUTES, size_of
from squeeze.system import notices, storage
from squeeze.system.limits import Limits

Command = Callable[..., None]


STDOUT = Path("-")  # this object alone; a file of this name is another


class PathOrUrl(click.Path):
    """A path, or a URL that fsspec reads. standard: whether - may stand for standard output."""

    def __init__(self, urls: bool, standard: bool = False):
        super().__init__(path_type=Path)
        self._urls, self._standard = urls, standard

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-" and self._standard:
            return STDOUT
        if value == "-":
            self.fail("standard input and output do not serve here: name a file (one called - is ./-)", param, ctx)
        if not storage.is_url(value):
            return super().convert(value, param, ctx)
        if self._urls:
            return storage.path_of(value)
        try:
            return storage.local_path(value)
        except SqueezeError as error:
            self.fail(str(error), param, ctx)


class PlaceOrName(PathOrUrl):
    """A path or a URL, or one of some names; ./NAME is a path."""

    def __init__(self, names: Sequence[str]):
        super().__init__(urls=True)
        self._names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in self._names else super().convert(value, param, ctx)


PATH, PLACE = PathOrUrl(urls=False), PathOrUrl(urls=True)


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, with K, M or G for powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return size_of(value)
        except OptionError as error:
            self.fail(str(error), param, ctx)


class Time(click.FloatRange):
    """A time above 0, or with `zero` from 0 on, that ends within a year. minutes: what it is told in, else seconds."""

    def __init__(self, minutes: bool = False, zero: bool = False):
        super().__init__(0, MOST_MINUTES * (1 if minutes else 60), min_open=not zero)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        time = float(super().convert(value, param, ctx))
        if math.isnan(time):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return time


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


def several(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """All of them, as one decorator; `--help` lists them in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


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
    if value is None:
        return
    if value not in LEVELS:
        raise OptionError(f"the level must be from {min(LEVELS)} to {max(LEVELS)}, got {value}")
    ctx.params.setdefault("levels", []).append(int(value))


def _silence(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        notices.listen(None)
    return value


quiet = click.option("-q", "--quiet", is_flag=True, callback=_silence, help="Say nothing but errors.")
verbose = click.option("-v", "--verbose", is_flag=True, help="Say what became of each file.")
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for each result, and progress on standard error."
)
threads = click.option(
    "-T",
    "--threads",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="Threads; 0, the default, for one a core.",
)
device = click.option("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, ...")
resident = click.option(
    "--resident",
    metavar="SIZE",
    type=Size(),
    help="Of a packed model, keep so much decoded, such as 2G.",
)
base = click.option(
    "--base",
    metavar="PATH",
    type=PATH,
    help="Of what `squeeze delta` or `pack --base` wrote, its base; without, it is looked for beside it.",
)
resume = click.option(
    "--resume",
    is_flag=True,
    help="Go on with a stopped run even if OUT is written already; until then the same command goes on by itself.",
)
model = click.option("--model", type=PATH, help="Language model of -7 to -9: a .gguf file, a folder, or smollm2.")
adapter = click.option(
    "--adapter", type=PATH, metavar="FILE", help="Of the language model: what `squeeze train --adapter` wrote, or none."
)
runs_on = click.option(
    "--device",
    default="cpu",
    metavar="NAME",
    help="What runs that model: cpu (default), cuda (all GPUs), cuda:N, or auto: GPUs, if any. Files are the same.",
)
dictionary = click.option(
    "-D",
    "--dictionary",
    type=PlaceOrName(BUILT_IN),
    metavar="FILE|NAME",
    help="What `squeeze train` learned from files like these; needed again to decompress. Or what is built in: auto "
    "(default), none, or text at -5 and -6.",
)


def _check_page(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and not ctx.resilient_parsing:
        from squeeze.recipes.reports.page import check_page

        check_page(value)
    return value


report = click.option(
    "--report",
    "page",
    type=PATH,
    metavar="PAGE.html",
    callback=_check_page,
    help="Write a page that shows the result, which any browser opens.",
)


def force(what: str = "OUT") -> Callable[[Command], Command]:
    return click.option("-f", "--force", is_flag=True, help=f"Overwrite {what}.")


def output(what: str = "this file", learned: bool = False) -> Callable[[Command], Command]:
    """Where the result goes; a dictionary that is learned may be named with the options that read it, too."""
    names = ("-o", "--output", *(("-D", "--dictionary") if learned else ()), "output")
    place = PLACE if learned else PathOrUrl(urls=True, standard=True)
    return click.option(*names, type=place, metavar="FILE", help=f"Write to {what}{'' if learned else '; - is -c'}.")


def converting(of: click.ParamType = PATH) -> Callable[[Command], Command]:  # type: ignore[type-arg]
    """IN and OUT, of the kind that a command takes."""
    return several(
        click.argument("source", metavar="IN", type=of), click.argument("target", metavar="OUT", type=of), force()
    )


def _note_limit(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
    """The command gets both options as one: `limits`."""
    changed = {} if value is None else {"memory" if param.name == "memlimit" else "output": value}
    ctx.params["limits"] = replace(ctx.params.get("limits") or Limits(), **changed)


limits = several(
    click.option(
        "--memlimit",
        metavar="SIZE",
        type=Size(),
        expose_value=False,
        callback=_note_limit,
        help="The most memory that reading a file may take, such as 4G; half of what is free, and at least 2G.",
    ),
    click.option(
        "--max-output",
        metavar="SIZE",
        type=Size(),
        expose_value=False,
        callback=_note_limit,
        help="The most bytes that may come out of a file, such as 1G.",
    ),
)
saying = several(quiet, as_json)
computing = several(device, threads)
reading = several(
    click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path()),
    click.option("-r", "--recursive", is_flag=True, help="Take every file in the folders named."),
    threads,
    quiet,
    verbose,
    as_json,
)
writing = several(
    output(),
    click.option("-c", "--stdout", is_flag=True, help="Write to standard output."),
    click.option("-k", "--keep", "rm", flag_value=False, type=bool, default=False, help="Keep the source (default)."),
    click.option("--rm", "rm", flag_value=True, type=bool, help="Delete the source once its result is written."),
    force("files, and take links and special files"),
    reading,
)
coding = several(threads, quiet, as_json)
scoring = several(
    click.option("--tasks", metavar="NAMES", help="Score it on tasks by lm-eval, such as hellaswag,arc_easy."),
    click.option(
        "--task-folder",
        metavar="DIR",
        type=PATH,
        help="Folder of lm-eval task files; their paths are relative to DIR. These can run code: use only folders "
        "that you trust.",
    ),
    click.option("--task-limit", metavar="N", type=click.IntRange(1), help="Score so many examples of each task only."),
    click.option("--shots", metavar="N", type=click.IntRange(0), help="Solved examples before each; as the task says."),
)
max_task_drop = click.option(
    "--max-task-drop",
    metavar="POINTS",
    type=click.FloatRange(0),
    help="Exit with 3 where accuracy on a task falls by more.",
)
measuring = several(
    click.option("--text", metavar="FILE", type=PATH, help="Measure the quality on this text, before and after."),
    click.option(
        "--windows", metavar="N", type=click.IntRange(1), help="Measure on so many windows of 1,024 tokens only."
    ),
    scoring,
    click.option(
        "--max-ppl-increase", metavar="PERCENT", type=float, help="Exit with 3 where perplexity rises by more."
    ),
    click.option(
        "--max-kl", metavar="NATS", type=click.FloatRange(0), help="Exit with 3 where the mean KL divergence is above."
    ),
    max_task_drop,
)
caching = several(
    click.option(
        "--kv-budget",
        metavar="SHARE",
        type=click.FloatRange(0, 1, min_open=True),
        help="Share of 16 bits a value; the calibration spreads it over heads.",
    ),
    click.option("--calibration", metavar="FILE", type=PATH, help="A text to calibrate on."),
    computing,
    saying,
)
compressing = several(
    measuring,
    resume,
    converting(),
    computing,
    report,
    saying,
)
