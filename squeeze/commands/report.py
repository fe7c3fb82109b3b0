"""`squeeze report`."""

from pathlib import Path

import click

from squeeze.commands import options, values
from squeeze.commands.echo import echo
from squeeze.commands.sections import command
from squeeze.recipes.reports.page import check_page, read, write


@command()
@click.argument("runs", metavar="RUN.json...", nargs=-1, required=True, type=values.PATH)
@click.option(
    "-o",
    "--output",
    default=Path("report.html"),
    type=values.PATH,
    metavar="PAGE.html",
    help="Output page; default: report.html",
)
@options.quiet
def report(runs: tuple[Path, ...], output: Path, quiet: bool) -> None:
    """Compare runs on one page: sizes, quality and layers.

    \b
    Example: squeeze report gptq.json rtn.json -o compared.html

    A RUN is what a command printed with --json, or a folder that quantize, prune, factorize or apply wrote.
    """
    check_page(output)
    named = [(path, run) for path in runs for run in read(path)]
    names = [run.name for _, run in named]
    write(output, [run.renamed(_told_apart(path, run.name, names)) for path, run in named])
    if not quiet:
        echo(f"{output}: open it in a browser")


def _told_apart(path: Path, name: str, names: list[str]) -> str:
    """Runs of one name also have that of their files."""
    return name if names.count(name) == 1 else f"{name} ({path.stem})"
