"""Quality checks of a result, and the device, for the commands that compress a model."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from squeeze.commands.echo import echo, echo_lines
from squeeze.commands.progress import steps
from squeeze.commands.reporting import write_page
from squeeze.errors import DeviceError, QualityError, printable
from squeeze.system import machine

if TYPE_CHECKING:
    from squeeze.engine.report import Report
    from squeeze.recipes.measure.tasks import Tasks
    from squeeze.recipes.options import Common


class Worse(click.ClickException):
    """An error of exit code 3: the result is written, but a limit is exceeded."""

    exit_code = 3


_LIMITS = ("max_ppl_increase", "max_kl", "max_task_drop", "max_error")


@dataclass(frozen=True)
class Verdict:
    """The text, inputs, tasks and limits that a result is measured with, and the page that shows it."""

    text: Path | None
    inputs: Path | None
    windows: int | None
    tasks: "Tasks | None"
    limits: dict[str, float | None]
    page: Path | None

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Self:
        """Take the options of the measurement out of those of a command, and load the tasks.

        Raises:
            UsageError: A limit has nothing to be measured on.
        """
        limits = {name: options.pop(name) for name in _LIMITS}
        text, windows, inputs = (options.pop(name) for name in ("text", "windows", "inputs"))
        if text is None and limits["max_ppl_increase"] is not None:
            raise click.UsageError("--max-ppl-increase needs --text")
        if text is None and inputs is None and limits["max_kl"] is not None:
            raise click.UsageError("--max-kl needs --text or --inputs")
        if inputs is None and limits["max_error"] is not None:
            raise click.UsageError("--max-error needs --inputs")
        tasks = tasks_of(options)
        if tasks is None and limits["max_task_drop"] is not None:
            raise click.UsageError("--max-task-drop needs --tasks")
        return cls(text, inputs, windows, tasks, limits, options.pop("page"))

    def check_inputs(self, command: str) -> None:
        """Raise UsageError if there are inputs, for a command that compares no outputs."""
        if self.inputs is not None:
            raise click.UsageError(f"{command} compares no outputs: run squeeze eval OUT --original IN --inputs PATH")

    def measure(self, report: "Report", device: str, quiet: bool, as_json: bool) -> None:
        from squeeze.recipes.measure.evaluate import measure

        name, kept = Path(report.target).name, f"{report.target} is written: `squeeze eval` measures it."
        if self.text is not None:
            with steps(f"{name}: quality", unit=" tokens", stopped_note=kept, quiet=quiet, as_json=as_json) as progress:
                measure(report, self.text, self.windows, device, progress)
        if self.inputs is not None:
            from squeeze.recipes.measure.outputs import measure_outputs

            with steps(
                f"{name}: outputs", unit=" samples", stopped_note=kept, quiet=quiet, as_json=as_json
            ) as progress:
                measure_outputs(report, self.inputs, None, device, progress)
        if self.tasks is not None:
            with steps(f"{name}: tasks", unit=" answers", stopped_note=kept, quiet=quiet, as_json=as_json) as progress:
                self.tasks.measure(report, device, progress)

    def conclude(self, report: "Report", as_json: bool, quiet: bool) -> None:
        """Print the report and what to do next, and write its page. Raises Worse if a limit is exceeded."""
        if as_json:
            click.echo(json.dumps(report.as_json()))
        elif not quiet:
            echo_lines(report.table())
            if sys.stderr.isatty():
                sizes = f"{report.raw_bytes:,} -> {report.stored_bytes:,} bytes, {report.seconds:.0f} s"
                follows = f"squeeze eval {report.target} --original {report.source} --text FILE"
                echo(f"{report.target}: {sizes}; next: {follows}", err=True)
        write_page(self.page, [report.as_json()])
        self.judge(report)

    def judge(self, report: "Report") -> None:
        """Raise Worse if a limit is exceeded."""
        with worse_on_quality_error():
            report.check(**self.limits)


@contextmanager
def worse_on_quality_error() -> Iterator[None]:
    """Raise Worse in place of a QualityError."""
    try:
        yield
    except QualityError as error:
        raise Worse(str(error)) from error


def tasks_of(options: dict[str, Any]) -> "Tasks | None":
    """Take the options of tasks out of those of a command, and load the tasks.

    Raises:
        UsageError: There are options of tasks, but no tasks.
    """
    names, rest = options.pop("tasks"), {name: options.pop(name) for name in ("task_folder", "task_limit", "shots")}
    task_names = [name.strip() for name in (names or "").split(",") if name.strip()]
    if not task_names:
        given = [f"--{name.replace('_', '-')}" for name, value in rest.items() if value is not None]
        if given or names is not None:
            raise click.UsageError(
                f"{given[0]} needs --tasks" if given else "--tasks needs at least one name, such as hellaswag"
            )
        return None
    from squeeze.recipes.measure.tasks import Tasks

    return Tasks.load(list(dict.fromkeys(task_names)), *rest.values())


def use(threads: int, device: str = "cpu") -> None:
    """Let torch compute on N threads; 0 means one per core. Raises DeviceError if it cannot use the device."""
    import torch

    torch.set_num_threads(threads or machine.available_cores())
    try:
        torch.empty(0, device=device).cpu()
    except (
        RuntimeError,
        AssertionError,
        ImportError,
        AttributeError,
    ) as error:  # different ones for each of torch's backends
        raise DeviceError(f"device {printable(device)}: torch cannot use it here; use --device cpu") from error


def estimate_of(
    source: Path, common: "Common", correction: float, device: str, calibrated: bool, quiet: bool
) -> Callable[[], None] | None:
    """Return a function that prints on standard error how much time and memory a run will take, or None if quiet.

    Args:
        source: Folder of the model.
        common: Options of the calibration set.
        correction: Share of error propagation.
        device: Torch device.
        calibrated: Whether there is a calibration set.
        quiet: Whether nothing is printed.
    """

    def say() -> None:
        from squeeze.recipes.measure.estimate import estimate

        tokens = common.samples * common.sequence_length if calibrated else 0
        click.echo(str(estimate(source, tokens, correction > 0, device)), err=True)

    return None if quiet else say
