"""Measure GPU kernels, compared with torch in the same run.

Results are checked before anything is timed. A stopped run continues: cases that the record of this device and commit
has are left out.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bench import records
from bench.measure import Measure, Row, option
from bench.tables import Column, Listing

_ROUNDS = 20


class Gpu:
    """The current CUDA device. `apart` is the total bytes of a weight's copies, so that none remains in a cache."""

    where, dtype, apart, large = "cuda", torch.bfloat16, 1 << 29, True

    def microseconds(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Return the mean microseconds of a call. All run in sequence, in a CUDA graph if they can be captured."""
        try:
            return graph_time(calls)
        except RuntimeError:
            torch.cuda.synchronize()
            return event_time(lambda: [call() for call in calls]) / len(calls)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if not torch.cuda.is_available():
        sys.exit("Error: no GPU is available")
    done = {row["case"] for row in records.current("gpu", options.results)}
    with torch.no_grad():
        for case in cases():
            if case.name not in done and any(part in case.name for part in options.only.split("|")):
                torch.manual_seed(1)
                yield from measure_case(case, Gpu())


def cases() -> tuple[Any, ...]:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # for kernels that do not say; unset, Triton warns
    from bench.shared.gpu_cases import CASES

    return CASES


def measure_case(case: Any, device: Any) -> Iterator[Row]:
    """Yield a row for each implementation of a case. Failures are reported on standard error."""
    data = case.data(device)
    expected, first = case.expected(data), 0.0
    for way in case.ways:
        try:
            calls = way.calls(data)
            check(calls[0](), expected, way.tolerance)
            found = device.microseconds(calls)
        except Exception as error:  # a kernel may raise anything
            print(f"Note: {case.name}, {way.name}: failed: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            continue
        row = {"case": case.name, "way": way.name, "us": found}
        row |= {"GB/s": case.nbytes(data) / found / 1e3} if case.nbytes else {}
        yield row | ({"x": first / found} if first else {})
        first = first or (found if way is case.ways[0] else 0.0)


def check(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Raise ValueError if a result is too far from the expected one.

    Args:
        found: result
        expected: expected result
        tolerance: relative error allowed; 0 for equal bits
    """
    if found.shape != expected.shape:
        raise ValueError(f"expected a result of shape {tuple(expected.shape)}, got {tuple(found.shape)}")
    if not tolerance:
        if not torch.equal(found.view(torch.uint8), expected.view(torch.uint8)):
            raise ValueError("the result is wrong")
        return
    error = ((found.float() - expected.float()).norm() / expected.float().norm()).item()
    if not error <= tolerance:
        raise ValueError(f"the result is wrong: its relative error is {error:.2e}")


def graph_time(calls: Sequence[Callable[[], Any]]) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return event_time(graph.replay) / len(calls)


def event_time(call: Callable[[], Any]) -> float:
    """Return the median microseconds of a call, after one warm-up call."""
    call()
    times = []
    for _ in range(_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return statistics.median(times)


MEASURE = Measure(
    rows,
    key=("case", "way"),
    needs=("a GPU", "triton"),
    time=20,
    options=(option("--only", default="", help="texts in the names of the cases to measure, separated by |"),),
    tables={
        "gpu": Listing(
            Column("case", "case"),
            Column("way", "way"),
            Column("us", "us", ",.1f"),
            Column("GB/s", "GB/s", ",.0f"),
            Column("x the first", "x", ".2f"),
        )
    },
)
