"""`squeeze explain`."""

import json
import sys
from pathlib import Path
from typing import Any

import click

import squeeze
from squeeze.commands import options, values
from squeeze.commands.echo import echo, echo_lines
from squeeze.commands.progress import bar
from squeeze.commands.sections import command
from squeeze.system import files, machine, storage


class Level(click.ParamType):  # type: ignore[type-arg]
    """The type of a level: a number, or an option such as -6."""

    name = "level"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        digits = str(value).removeprefix("-")
        if not digits.isdecimal():
            self.fail(f"{value!r} is not a level such as -6", param, ctx)
        return int(digits)


@command()
@click.argument("source", metavar="FILE", type=values.PLACE)
@options.levels
@click.option("-o", "--output", type=values.PLACE, metavar="FILE", help="Output page; default: FILE.html")
@options.force("the page")
@click.option("--range", "span", type=values.Range(), metavar="A:B", help="Bytes to show, such as 100:200")
@click.option("--against", type=Level(), metavar="-N", help="Level to compare with")
@click.option("--against-model", type=values.PATH, metavar="PATH", help="Language model to compare with")
@click.option("--no-parse", is_flag=True, help="Do not open wrappers, such as zip, gzip, PDF and PNG")
@options.model
@options.adapter
@options.lanes
@options.dictionary
@options.limits
@options.coding
def explain(
    source: Path,
    output: Path | None,
    force: bool,
    span: tuple[int, int | None] | None,
    against: int | None,
    against_model: Path | None,
    no_parse: bool,
    dictionary: Path | str | None,
    threads: int,
    quiet: bool,
    as_json: bool,
    levels: tuple[int, ...] = (),
    **settings: Any,
) -> None:
    """Show which bytes or tokens of a file cost how many bits.

    \b
    Example: squeeze explain -6 report.txt

    Writes FILE.html, a page for any browser. With --json it prints the numbers, and writes a page only if -o names one.
    A .sqz file is explained as it was compressed.
    """
    from squeeze.codecs.stream import estimates, levels as known
    from squeeze.recipes.reports.explanation.explain import is_compressed, passes

    page_name = f"{source.name}.html"
    beside = Path(page_name) if storage.remote(source) else source.with_name(page_name)
    target = output if output or as_json else beside
    if target:
        files.check_target(target, [source], force)
    threads = threads or machine.available_cores()
    with source.open("rb") as file:
        compressed, size = is_compressed(file.read(3)), source.stat().st_size
    chosen = levels[-1] if levels else None
    if not compressed and not quiet and sys.stderr.isatty():
        row = known.level(chosen or known.DEFAULT)
        if word := estimates.time_message(row, size, threads, True):
            echo(word, err=True)
    settings = {name: value for name, value in settings.items() if value is not None}
    count = passes(compressed, against is not None or against_model is not None)
    with bar(str(source), None if compressed else size, passes=count, quiet=quiet, as_json=as_json) as tick:
        explanation = squeeze.explain(
            source,
            chosen,
            span=span or (0, None),
            against=against,
            against_model=against_model,
            threads=threads,
            dictionary=dictionary,
            progress=tick,
            parse=not no_parse,
            **settings,
        )
    if target:
        page = explanation.to_html()
        with files.replacing(target, overwrite=force) as sink:
            sink.write(page.encode())
    if as_json:
        click.echo(json.dumps(explanation.as_json()))
    elif not quiet:
        echo_lines(explanation.table())
        echo(f"{target}: open it in a browser")
