"""Benchmark tasks with known answers, by EleutherAI's lm-eval (Gao et al.,
github.com/EleutherAI/lm-evaluation-harness).

A task is YAML that names a data set, a prompt and metrics. lm-eval has thousands of tasks and fetches their data from
the Hugging Face Hub. Tasks of a local folder may name local files. A task can run code: lm-eval imports the Python that
it names, and renders its templates by Jinja without a sandbox.
"""

import contextlib
import difflib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from squeeze.checkpoint.causal import check_causal
from squeeze.checkpoint.pretrained import explained
from squeeze.engine.report import Report
from squeeze.engine.tasks import TaskScore
from squeeze.errors import SqueezeError, printable
from squeeze.integrations.load_model import load_model, tokenizer_of
from squeeze.system import extras

__all__ = ["Progress", "Tasks"]

Progress = Callable[[str, int, int], None]
_BATCH = 4  # examples at a time
_BOOTSTRAPS = 1000  # for standard errors of metrics that are no means
_SEED = 1234  # of solved examples, as lm-eval's command has it
_NONE = "none"  # lm-eval's name of no filter


class _MetricValues(NamedTuple):
    """A score, and its values for each example; no values if the score is not their mean."""

    score: TaskScore
    values: list[float]


@dataclass(frozen=True)
class Tasks:
    """Tasks and groups that are loaded with their data.

    `names` are the requested tasks, with tags replaced by their tasks. `loaded` is what lm-eval's TaskManager.load
    returns. `limit` is the number of examples of each task.
    """

    names: tuple[str, ...]
    loaded: dict[str, dict[str, Any]]
    limit: int | None = None

    @classmethod
    def load(
        cls, names: Sequence[str], folder: Path | None = None, limit: int | None = None, shots: int | None = None
    ) -> Self:
        """Load tasks by name.

        Args:
            names: Tasks, groups or tags.
            folder: More tasks; paths in their YAML are relative to it.
            limit: Examples of each task.
            shots: Solved examples before each question; None for the task's own number.

        Raises:
            PackageError: If lm-eval is not installed.
            SqueezeError: If a task or the folder does not exist, or data cannot be fetched.
        """
        if folder is not None and not folder.is_dir():
            raise SqueezeError(f"{folder}: no such folder")
        folder = folder and folder.absolute()  # from whose tasks lm-eval reads while it is the current one
        with extras.explained():
            import lm_eval  # noqa: F401
        with _silent(), explained(folder or "lm-eval"):
            manager = _manager(names, folder)
        for name in names:
            if name not in manager.task_index:
                near = difflib.get_close_matches(name, manager.all_tasks, 1)
                hint = f": did you mean {near[0]}?" if near else ""
                raise SqueezeError(f"{printable(repr(name))} is not a task of lm-eval or of the task folder{hint}")
        loaded: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}, "group_map": {}}
        with _silent(), contextlib.chdir(folder or "."):
            for name in names:
                for kind, found in _loaded(manager, name).items():
                    loaded[kind] |= found
        for task in loaded["tasks"].values():
            _prepare(task, shots)
        inner = {child for children in loaded["group_map"].values() for child in children}
        selected = [name for name in (*loaded["groups"], *loaded["tasks"]) if name not in inner or name in names]
        return cls(tuple(selected), loaded, limit)

    def run(self, model: Any, tokenizer: Any, tick: Progress, label: str) -> dict[tuple[str, str], _MetricValues]:
        """Return every metric of every task, by task and metric."""
        from lm_eval.evaluator import evaluate  # an extra

        screen = sys.stderr

        def answered(done: int, total: int) -> None:
            with contextlib.redirect_stderr(screen):
                tick(label, done, total)

        with _silent(), explained(", ".join(self.names)):
            wrapped = _language_model(model, tokenizer, answered)
            results = evaluate(wrapped, self.loaded, limit=self.limit, bootstrap_iters=_BOOTSTRAPS)
            return {(one.score.task, one.score.metric): one for one in self._scores_of(results)}

    def scores(
        self,
        folder: Path,
        original: Path | None = None,
        *,
        device: str = "cpu",
        resident: int | None = None,
        base: Path | None = None,
        progress: Progress = lambda label, done, total: None,
    ) -> list[TaskScore]:
        """Score a model on the tasks, and its original if there is one. One model is in memory at a time.

        Args:
            folder: Folder or GGUF file of the model.
            original: Folder or GGUF file of its original.
            device: Torch device.
            resident: Bytes of decoded weights to keep, as in load_model.
            base: Base of the model, as in load_model.
            progress: Called with a label, the requests done and all requests.
        """
        base_values = {}
        if original is not None:
            model = load_model(original, device=device)
            check_causal(model)
            base_values = self.run(model, tokenizer_of(original), progress, "before")
            del model
        model = load_model(folder, device=device, resident=resident, base=base)
        check_causal(model)
        values = self.run(model, tokenizer_of(folder), progress, "after" if original else "")
        return [_with_base(found, base_values.get(key)) for key, found in values.items()]

    def measure(self, report: Report, device: str = "cpu", progress: Progress | None = None) -> None:
        """Score the model before and after compression, and add the scores to the report."""
        shown: dict[str, Any] = {"progress": progress} if progress else {}
        report.tasks = self.scores(Path(report.target), Path(report.source), device=device, **shown)
        if Path(report.target).is_dir():
            report.write(Path(report.target))

    def _scores_of(self, results: Any) -> Iterator[_MetricValues]:
        """Yield a group's own means, or those of its tasks if it has none."""
        for name in self.names:
            own = list(_metrics(results, name))
            group = None if own else self.loaded["groups"].get(name)
            inner = [task.task_name for task in group.get_all_tasks()] if group is not None else []
            yield from own
            yield from (found for task in inner for found in _metrics(results, task))


def _with_base(values: _MetricValues, base_values: _MetricValues | None) -> TaskScore:
    if base_values is None:
        return values.score
    paired = len(values.values) == len(base_values.values)
    pairs = zip(base_values.values, values.values, strict=True) if paired else ()
    return values.score.with_base(base_values.score, [base - value for base, value in pairs])


def _manager(names: Sequence[str], folder: Path | None) -> Any:
    """Return a TaskManager of the folder's tasks, and of lm-eval's if needed: indexing those takes seconds."""
    from lm_eval.tasks import TaskManager  # an extra

    if folder is None:
        return TaskManager()
    known = TaskManager(include_path=str(folder), include_defaults=False)
    entries = [known.task_index.get(name) for name in names]
    inner = [task for entry in entries if entry for task in _listed(entry.cfg)]
    if None not in entries and all(task in known.task_index for task in inner):
        return known
    return TaskManager(include_path=str(folder))


def _listed(config: dict[str, Any] | None) -> list[str]:
    """Return the names of a group's tasks; an empty list for other entries."""
    tasks = (config or {}).get("task")
    tasks = tasks if isinstance(tasks, list) else []
    return [str(task.get("task")) if isinstance(task, dict) else str(task) for task in tasks]


def _loaded(manager: Any, name: str) -> dict[str, dict[str, Any]]:
    """Load the tasks of a name with their data."""
    try:
        with explained(name):
            found: dict[str, dict[str, Any]] = manager.load([name])
            return found
    except SqueezeError as error:
        if not _is_offline(error):
            raise
        raise SqueezeError(
            f"{name}: its data are not on this machine and could not be fetched: name local tasks by `task_folder`"
        ) from error


def _prepare(task: Any, shots: int | None) -> None:
    """Set seed and number of solved examples as lm-eval's simple_evaluate does; a task that declares 0 keeps 0."""
    said = task.get_config("num_fewshot")
    if said != 0:
        task.set_config(key="num_fewshot", value=said or 0 if shots is None else shots)
    task.set_fewshot_seed(seed=_SEED)


def _is_offline(error: BaseException | None) -> bool:
    """Return whether an error was caused by a failed connection."""
    while error is not None:
        if isinstance(error, ConnectionError) or type(error).__name__ in ("ConnectError", "OfflineModeIsEnabled"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _metrics(results: Any, name: str) -> Iterator[_MetricValues]:
    """Yield the metrics of a task or group, whose keys are "metric,filter"."""
    row = results["results"].get(name, {})
    for key, value in row.items():
        metric, comma, answers = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        stderr = row.get(f"{metric}_stderr,{answers}")
        stderr = float(stderr) if isinstance(stderr, int | float) else None
        metric_name = metric if answers == _NONE else key
        samples = results["samples"].get(name, ())
        values = [one.get(metric) for one in samples if one["filter"] == answers]
        plain = [float(one) for one in values if isinstance(one, int | float)]
        if len(plain) != len(values) or not plain or abs(sum(plain) / len(plain) - value) > 1e-9:
            plain = []
        yield _MetricValues(TaskScore(name, metric_name, float(value), row["sample_len"], stderr), plain)


def _language_model(model: Any, tokenizer: Any, tick: Callable[[int, int], None]) -> Any:
    """Wrap a model for lm-eval, without progress bars, and count its requests."""
    from lm_eval.models.huggingface import HFLM  # an extra

    class LanguageModel(HFLM):  # type: ignore[misc]
        done = total = 0

        def add_partial(self, *ignored: Any) -> None:
            self.done += 1
            tick(self.done, self.total)

        def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
            self.total += len(requests)
            return super().loglikelihood(requests, disable_tqdm=True)

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
            self.total += len(requests)
            return super().loglikelihood_rolling(requests, disable_tqdm=True)

        def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
            self.total += len(requests)
            return super().generate_until(requests, disable_tqdm=True)

        def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = True, **options: Any) -> Any:
            return super()._loglikelihood_tokens(requests, disable_tqdm=True, **options)

    _name_ends(tokenizer, model.config.get_text_config())
    wrapper = LanguageModel(pretrained=model, tokenizer=tokenizer, batch_size=_BATCH)
    wrapper.set_cache_hook(wrapper)  # which is told of every answer
    return wrapper


def _name_ends(tokenizer: Any, config: Any) -> None:
    """Name the first and last tokens of a text, which lm-eval needs, if only config.json has them or one is missing."""
    names = ("bos_token", "eos_token")
    numbers = [getattr(config, f"{name}_id", None) for name in names]
    known = [number for number in numbers if isinstance(number, int)]
    for name, number in zip(names, numbers, strict=True):
        if getattr(tokenizer, name) is None and known:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number if isinstance(number, int) else known[0]))


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress warnings and progress bars of lm-eval and of what it fetches data with."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
