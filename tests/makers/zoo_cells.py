"""Run each operation on a model of the zoo (tests/makers/zoo.py), and name the outcome.

A cell is `works`, `works: CONDITION`, `refused: LINE` or `fault: TEXT`. Faults are a traceback, an error in another
library's words, a refusal after all the work, and a result that differs from transformers' on the same weights. All run
in this process, which imports torch once. A second process loads folders that transformers must load without squeeze.
"""

import contextlib
import gc
import io
import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import click
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from squeeze import cli
from squeeze.engine.report import Report
from squeeze.integrations.load_model import load_model
from tests.makers import plain_transformers
from tests.makers.checkpoints import content
from tests.makers.zoo import TEXT, write

__all__ = ["CELLS", "OURS", "WORKS", "outcomes"]

WORKS = "works"
OURS = "experts are loaded by squeeze alone"
Check = Callable[["_Model"], str | None]
_NEAR = 0.05  # of logits of the same weights: some are rounded to 16 bits for the dense twin
_FAR = 0.9  # of logits of weights with few bits; those of other random weights are 1.4 apart
_THREADED = ("pack", "unpack", "quantize", "prune", "factorize", "kv-eval", "generate")
_PROMPT = TEXT[:60]
_IDS = torch.randint(5, 390, (1, 24), generator=torch.Generator().manual_seed(1))


class Refused(Exception):
    """A command's one-line refusal."""


class Fault(Exception):
    """An outcome that no cell may have."""


def outcomes(name: str, work: Path, cells: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Return the outcome of each cell of an architecture, or of the named cells."""
    model = _Model(write(work / "model", name), work)
    gc.collect()  # the models of the architecture before; takes too long for every cell
    for cell, check in CELLS.items():
        if cell in cells or not cells:
            yield cell, _outcome(check, model).replace(f"{work}/", "")
            for made in work.iterdir():
                if made != model.folder:
                    shutil.rmtree(made) if made.is_dir() else made.unlink()


def _outcome(check: Check, model: "_Model") -> str:
    try:
        remark = check(model)
    except Refused as refusal:
        return f"refused: {refusal}"
    except Fault as fault:
        return f"fault: {fault}"
    except Exception as error:
        return f"fault: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return f"{WORKS}: {remark}" if remark else WORKS


class _Model:
    """A model's folder, and what transformers computes from it."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self.work = folder, work
        self.text = folder.with_name("text.txt")

    @cached_property
    def logits(self) -> torch.Tensor:
        return _logits(_loaded(self.folder))

    @cached_property
    def continued(self) -> str:
        tokenizer, model = AutoTokenizer.from_pretrained(self.folder), _loaded(self.folder)
        ids = tokenizer(_PROMPT, return_tensors="pt", return_token_type_ids=False)
        try:
            made = model.generate(**ids, max_new_tokens=8, do_sample=False)
        except Exception as error:
            raise Refused(f"transformers does not either: {' '.join(str(error).split())[:200]}") from error
        return str(tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))

    def run(self, command: str, *options: object) -> Path:
        """Run a command with a calibration text on the folder, and return its output folder."""
        self.text.write_text(TEXT)
        calibration = ("--calibration", self.text, "--samples", 4, "--sequence-length", 64)
        _run(command, self.folder, self.work / command, *options, *calibration, "-q")
        return self.work / command

    def twin(self, folder: Path) -> torch.Tensor:
        """Return the logits of a compressed folder after `densify`."""
        _run("densify", folder, self.work / "dense", "-f", "-q")
        return _logits(_loaded(self.work / "dense"))

    def check(self, logits: torch.Tensor, folder: Path, far: float | None = _FAR) -> None:
        """Check the logits of a loaded folder against its dense form and against the original.

        Args:
            logits: logits of the loaded folder
            folder: compressed folder
            far: relative distance allowed from the original's logits, None for any
        """
        _near(logits, self.twin(folder), _NEAR, "the dense twin")
        if far is not None:
            _near(logits, self.logits, far, "the original")


def _run(command: str, *arguments: object) -> str:
    """Return a command's standard output.

    It runs on one thread, since products this small take less time than several threads need to synchronise. Raises
    Refused if it fails in one line of its own before the work is done, else Fault.
    """
    out = io.StringIO()
    words = [command, *map(str, arguments), *(["--threads", "1"] if command in _THREADED else [])]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            status = cli.main.main(words, prog_name="squeeze", standalone_mode=False)
    except click.ClickException as error:
        said = error.format_message()
        if "\n" in said.strip():
            raise Fault(f"more than a line: {said}") from error
        if foreign := _foreign(error, said):
            raise Fault(f"{command} in the words of another library: {foreign}") from error
        if "would not load" in said and "nothing was written" in said:
            raise Fault(f"refused after all the work: {said}") from error
        raise Refused(said) from error
    if status:
        raise Fault(f"{command} ended with {status}")
    return out.getvalue()


def _foreign(error: BaseException, said: str) -> str:
    """Return the error of another library whose words a command repeats, or an empty text."""
    cause: BaseException | None = error
    while cause := cause.__cause__:
        if not isinstance(cause, OSError | click.ClickException) and not type(cause).__module__.startswith("squeeze."):
            words = " ".join(str(cause).split())
            if words and words[:60] in said:
                return f"{type(cause).__name__}: {words[:200]}"
    return ""


def _loaded(folder: Path) -> Any:
    with contextlib.redirect_stderr(io.StringIO()):  # bars of compressed-tensors
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    if lost := [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]:
        raise Fault(f"{folder.name}: tensors are missing or unexpected: {', '.join(map(str, lost[:3]))}")
    return model.eval()


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    logits = model(input_ids=_IDS).logits.float()
    if not torch.isfinite(logits).all():
        raise Fault("logits are not finite")
    return logits


def _near(logits: torch.Tensor, other: torch.Tensor, bound: float, what: str) -> None:
    """Compare logits at three quarters of the positions: at the others rounding may have chosen other experts."""
    apart = float(((logits - other).norm(dim=-1) / other.norm(dim=-1)).quantile(0.75))
    if not apart <= bound:
        raise Fault(f"logits are {apart:.2g} of their length from those of {what}")


def _pack(model: _Model) -> None:
    packed, unpacked = model.work / "packed", model.work / "unpacked"
    _run("pack", model.folder, packed, "-q")
    if not torch.equal(_logits(load_model(packed)), model.logits):
        raise Fault("the packed model computes other logits")
    _run("unpack", packed, unpacked, "-q")
    if content(unpacked) != content(model.folder):
        raise Fault("unpacked files differ")


def _quantize(model: _Model) -> str | None:
    folder = model.run("quantize")
    model.check(_logits(load_model(folder)), folder)
    notes = Report.read(folder).notes
    if any(note.startswith("experts: transformers alone") for note in notes):
        return OURS
    found, lost = _process().submit(plain_transformers.logits, str(folder), _IDS.tolist()).result()
    if lost:
        raise Fault(f"transformers alone: tensors are missing or unexpected: {', '.join(lost[:3])}")
    model.check(torch.tensor(found), folder)
    return None


@cache
def _process() -> ProcessPoolExecutor:
    """Return a process without the loaders of squeeze, which remain in transformers once they are imported."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _quantize_own(model: _Model) -> None:
    folder = model.run("quantize", "--format", "squeeze", "--bits", 8)
    model.check(_logits(load_model(folder)), folder, far=0.3)


def _prune(model: _Model) -> None:
    folder = model.run("prune")
    model.check(_logits(load_model(folder)), folder, far=None)


def _factorize(model: _Model) -> None:
    folder = model.run("factorize", "--keep", 0.8)
    model.check(_logits(load_model(folder)), folder, far=None)


def _kv_eval(model: _Model) -> None:
    model.text.write_text(TEXT)
    wanted = ("--policy", "kivi:2,window=8", "--context", 192, "--windows", 1, "--no-cost", "--json")
    rows = [json.loads(line) for line in _run("kv-eval", model.folder, "--text", model.text, *wanted).splitlines()]
    if not rows[-1]["distance"]["kl"] > 0:
        raise Fault(f"kv-eval measures nothing: {rows}"[:300])


def _generate(model: _Model, *options: object) -> None:
    text = _run("generate", model.folder, _PROMPT, "-n", 8, "-q", *options)
    if text.strip() != model.continued.strip():
        raise Fault(f"text is {text!r}, and that of transformers {model.continued!r}")


def _generate_kv(model: _Model) -> None:
    _generate(model, "--kv", "kivi:8,window=128")
    _run("generate", model.folder, TEXT[:600], "-n", 4, "-q", "--kv", "kivi:4,window=32")


def _gguf(model: _Model) -> None:
    file = model.work / "model.gguf"
    _run("quantize", model.folder, file, "--format", "gguf", "--type", "q8_0", "--method", "rtn", "-q")
    _near(_logits(load_model(file)), model.logits, 0.3, "the original")


CELLS: dict[str, Check] = {
    "pack": _pack,
    "quantize": _quantize,
    "quantize, own format": _quantize_own,
    "prune 2:4": _prune,
    "factorize": _factorize,
    "kv-eval": _kv_eval,
    "generate": _generate,
    "generate --kv": _generate_kv,
    "GGUF": _gguf,
}
