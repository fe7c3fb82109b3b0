"""Every kernel on a GPU, beside torch's own product and rivals in the same run.

Cases are measured in a process of their own each, so that a kernel that hangs or breaks the device ends its case alone.
What was measured on this device at this commit is not measured again, so a run that was stopped goes on. Without a GPU
every row says so.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence

import torch

from bench.entries import gpus
from bench.entry import Row
from bench.shared import alone
from bench.shared.contest import NOT_INSTALLED, Case, Gpu, contend, installed


def rows(options: argparse.Namespace) -> Iterator[Row]:
    cases = [case for case in _cases() if any(part in case.name for part in options.only.split("|"))]
    if not torch.cuda.is_available():
        for case in cases:
            for one in case.contenders:
                yield {"case": case.name, "way": one.name, "device": None, "status": gpus.NO_GPU}
        return
    for case in cases:
        wanted = []
        for one in case.contenders:
            row = {"case": case.name, "way": one.name, "device": torch.cuda.get_device_name()}
            if not options.again and gpus.is_kept("gpu", row, options):
                yield row | {"status": gpus.KEPT}
            elif one.package and not installed(one.package):
                yield row | {"status": NOT_INSTALLED}
            else:
                wanted.append(one.name)
        if wanted and options.together:
            torch.manual_seed(1)
            with torch.no_grad():
                yield from contend(case, wanted, Gpu())
            torch.cuda.empty_cache()
        elif wanted:
            yield from apart(case, wanted, options.seconds, _contend)


def _cases() -> Sequence[Case]:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # what kernels get that do not say; unset, Triton warns
    from bench.shared.gpu_cases import CASES

    return CASES


def apart(case: Case, wanted: Sequence[str], seconds: float, work: Callable[..., Iterator[Row]]) -> Iterator[Row]:
    """The rows of a case from a process of its own. Those that it does not come to say why."""
    missing = dict.fromkeys(wanted)
    about = {"case": case.name, "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
    for row in alone.measured(work, seconds, case.name, list(wanted)):
        if "way" in row:
            missing.pop(row["way"], None)
            yield row
        else:
            yield from (about | {"way": way} | row for way in missing)


def _contend(name: str, wanted: list[str]) -> Iterator[Row]:
    case = next(case for case in _cases() if case.name == name)
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    yield from contend(case, wanted, Gpu())
