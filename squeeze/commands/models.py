"""What the commands that compress a model share: what computes, what is asked of a result and what is said of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from squeeze.commands.echo import echo
from squeeze.commands.progress import steps
from squeeze.commands.reporting import write_page
from squeeze.errors import QualityError
from squeeze.system import cores

if TYPE_CHECKING:
    from squeeze.engine.report import Report
    from squeeze.recipes.options import Common


class Worse(click.ClickException):
    """The result is there, but is not good enough."""

    exit_code = 3


@dataclass(frozen=True)
class Verdict:
    """What is measured of a result, what is asked of it, and the page that shows it."""

    text: Path | None
    windows: int | None
    limits: dict[str, float | None]
    page: Path | None

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Self:
        """Takes its options out of a command's. Raises UsageError where limits have no text to be measured on."""
        limits = {name: options.pop(name) for name in ("max_ppl_increase", "max_kl")}
        text, windows = options.pop("text"), options.pop("windows")
        if text is None and any(value is not None for value in limits.values()):
            raise click.UsageError("--max-ppl-increase and --max-kl need --text")
        return cls(text, windows, limits, options.pop("page"))

    def measure(self, report: "Report", device: str, quiet: bool, as_json: bool) -> None:
        from squeeze.recipes.evaluate import measure

        if self.text is not None:
            name, kept = Path(report.target).name, f"{report.target} is written: squeeze eval measures it."
            with steps(f"{name}: quality", unit=" tokens", kept=kept, quiet=quiet, as_json=as_json) as progress:
                measure(report, self.text, self.windows, device, progress)

    def conclude(self, report: "Report", as_json: bool, quiet: bool) -> None:
        """Print the report, and write its page. Raises Worse where a limit is exceeded."""
        if as_json:
            click.echo(json.dumps(report.as_json()))
        elif not quiet:
            echo(report.table())
        write_page(self.page, [report.as_json()])
        try:
            report.check(**self.limits)
        except QualityError as error:
            raise Worse(str(error)) from error


def use(threads: int) -> None:
    """Let torch compute on so many threads."""
    import torch

    torch.set_num_threads(threads or cores.available())


def say_estimate(source: Path, common: "Common", correction: float, device: str, calibrated: bool) -> None:
    """On standard error, what a run with these options will take."""
    from squeeze.recipes.estimate import estimate

    tokens = common.samples * common.sequence_length if calibrated else 0
    click.echo(str(estimate(source, tokens, correction > 0, device)), err=True)
