"""What the commands on models share: options, progress, and what is said of a result in the end."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from squeeze.commands.options import several
from squeeze.errors import QualityError
from squeeze.system import cores, files

if TYPE_CHECKING:
    from squeeze.engine.report import Report

PATH = click.Path(path_type=Path)

saying = several(
    click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
)
computing = several(
    click.option("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, ..."),
    click.option(
        "-T",
        "--threads",
        metavar="N",
        type=click.IntRange(0),
        default=0,
        help="Threads; 0, the default, for one a core.",
    ),
)
converting = several(
    click.argument("source", metavar="IN", type=PATH),
    click.argument("target", metavar="OUT", type=PATH),
    click.option("-f", "--force", is_flag=True, help="Overwrite OUT."),
)
measuring = several(
    click.option("--text", metavar="FILE", type=PATH, help="Measure the quality on this text, before and after."),
    click.option(
        "--windows", metavar="N", type=click.IntRange(1), help="Measure on so many windows of 1,024 tokens only."
    ),
)
compressing = several(
    click.option("--calibration", metavar="FILE", help="Text, .jsonl, a data set's name, or self (default)."),
    click.option("--samples", default=128, metavar="N", type=click.IntRange(1), help="Calibration sequences (128)."),
    click.option("--sequence-length", default=512, metavar="L", type=click.IntRange(2), help="Tokens of each (512)."),
    click.option("--seed", default=0, metavar="N", help="Of what is chosen at random (0)."),
    click.option("--ignore", multiple=True, metavar="PART", help="Leave modules with this in their names; repeatable."),
    measuring,
    click.option(
        "--max-ppl-increase", metavar="PERCENT", type=float, help="Exit with 3 where perplexity rises by more."
    ),
    click.option("--max-kl", metavar="NATS", type=float, help="Exit with 3 where the mean KL divergence is above."),
    click.option("--resume", is_flag=True, help="Go on with a run that was stopped."),
    converting,
    computing,
    saying,
)


class Worse(click.ClickException):
    """The result is there, but is not good enough."""

    exit_code = 3


@dataclass(frozen=True)
class Verdict:
    """What is measured of a result, and what is asked of it."""

    text: Path | None
    windows: int | None
    limits: dict[str, float | None]

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Self:
        """Takes its options out of a command's. Raises UsageError where limits have no text to be measured on."""
        limits = {name: options.pop(name) for name in ("max_ppl_increase", "max_kl")}
        text, windows = options.pop("text"), options.pop("windows")
        if text is None and any(value is not None for value in limits.values()):
            raise click.UsageError("--max-ppl-increase and --max-kl need --text")
        return cls(text, windows, limits)

    def measure(self, report: "Report", device: str) -> None:
        from squeeze.recipes.evaluate import measure

        if self.text is not None:
            measure(report, self.text, self.windows, device)

    def conclude(self, report: "Report", as_json: bool, quiet: bool) -> None:
        """Print the report. Raises Worse where a limit is exceeded."""
        if as_json:
            click.echo(json.dumps(report.as_json()))
        elif not quiet:
            click.echo(report.table())
        try:
            report.check(**self.limits)
        except QualityError as error:
            raise Worse(str(error)) from error


def use(threads: int) -> None:
    """Let torch compute on so many threads."""
    import torch

    torch.set_num_threads(threads or cores.available())


def say_estimate(source: Path, options: dict[str, Any], calibrated: bool) -> None:
    """On standard error, what a run with these options will take."""
    from squeeze.recipes.estimate import estimate

    tokens = options["samples"] * options["sequence_length"] if calibrated else 0
    click.echo(str(estimate(source, tokens, options["correction"] > 0, options["device"])), err=True)


@contextmanager
def steps(name: str, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on the terminal, if there is one, that names the block at work."""
    with _shown(0, name, " blocks", quiet) as shown:

        def step(what: str, done: int, total: int) -> None:
            _stop_if_asked()
            shown.total = total
            shown.set_postfix_str(what, refresh=False)
            shown.update(done - shown.n)

        yield step


@contextmanager
def bar(total: int | None, name: str, quiet: bool, unit: str = "") -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, if there is one."""
    with _shown(total, name, unit, quiet, unit_scale=True) as shown:

        def tick(count: int) -> None:
            _stop_if_asked()
            shown.update(count)

        yield tick


def _shown(total: int | None, name: str, unit: str, quiet: bool, **more: Any) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc=name, unit=unit, leave=False, disable=quiet or not sys.stderr.isatty(), **more)


def _stop_if_asked() -> None:
    if files.interrupted.is_set():
        raise KeyboardInterrupt
