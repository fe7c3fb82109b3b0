"""Every kernel on a GPU, beside torch's own product and rivals in the same run.

Cases are measured in a process of their own each, so that a kernel that hangs or breaks the device ends its case alone.
What was measured on this device at this commit is not measured again, so a run that was stopped goes on. Without a GPU
every row says so.
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

import torch

from bench import machine, records
from bench.entry import Row
from bench.shared.contest import Case, Gpu, contend


def rows(options: argparse.Namespace) -> Iterator[Row]:
    cases = [case for case in _cases() if any(part in case.name for part in options.only.split("|"))]
    if not torch.cuda.is_available():
        for case in cases:
            for one in case.contenders:
                yield {"case": case.name, "way": one.name, "device": None, "status": "no GPU"}
        return
    done = set() if options.again else _measured(options, torch.cuda.get_device_name())
    for case in cases:
        wanted = [one.name for one in case.contenders if (case.name, one.name) not in done]
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


def _measured(options: argparse.Namespace, device: str) -> set[tuple[str, str]]:
    """Cases and ways that have a result of this device and commit."""
    kept = [record for record in records.load("gpu", options.results) if record["commit"] == machine.commit()]
    found = [record["row"] for record in kept]
    return {(row["case"], row["way"]) for row in found if row["status"] == "measured" and row["device"] == device}


def apart(case: Case, wanted: Sequence[str], seconds: float, work: Callable[..., None]) -> Iterator[Row]:
    """The rows of a case from a process of its own. Those that it does not come to say why."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(sending, case.name, list(wanted)), daemon=True)
    process.start()
    sending.close()
    missing, reason = dict.fromkeys(wanted), f"took more than {seconds:g} s"
    try:
        while receiving.poll(seconds):
            row = receiving.recv()
            missing.pop(row["way"], None)
            yield row
    except EOFError:
        process.join()
        reason = f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    for way in missing:
        yield {"case": case.name, "way": way, "device": name, "status": f"failed: {reason}"}


def _contend(sending: Connection, name: str, wanted: list[str]) -> None:
    case = next(case for case in _cases() if case.name == name)
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    for row in contend(case, wanted, Gpu()):
        sending.send(row)
