"""Measure GPU kernels, compared with torch in the same run.

Results are checked before anything is timed. A stopped run continues: cases that the record of this device and commit
has are left out.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench import records
from bench.measure import Measure, Row, option
from bench.tables import Column, Listing
from squeeze.kernels import choices


class Gpu:
    """The current CUDA device."""

    where, dtype, large = "cuda", torch.bfloat16, True

    def microseconds(self, call: Callable[[], Any]) -> float:
        """Return the microseconds of a call on a cold cache, without those of its launch from Python."""
        return 1e6 * (choices.measured_seconds(torch.device(self.where), call) or 0.0)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if not torch.cuda.is_available():
        sys.exit("Error: no GPU is available")
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # for kernels that do not say; unset, Triton warns
    from bench.shared.gpu_cases import CASES

    done = {row["case"] for row in records.current("gpu", options.results)}
    with torch.no_grad():
        for case in CASES:
            if case.name not in done and any(part in case.name for part in options.only.split("|")):
                torch.manual_seed(1)
                yield from measure_case(case, Gpu())


def measure_case(case: Any, device: Any) -> Iterator[Row]:
    """Yield a row for each implementation of a case. Failures are reported on standard error."""
    data, first = case.inputs(device), 0.0
    for name, way in case.ways.items():
        try:
            call = way(data)
            check(call(), data.expected, case.tolerance)
            found = device.microseconds(call)
        except Exception as error:  # a kernel may raise anything
            print(f"Note: {case.name}, {name}: failed: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            continue
        row = {"case": case.name, "way": name, "us": found}
        row |= {"GB/s": data.dense.nbytes / found / 1e3} if case.in_bytes else {}
        yield row | ({"x": first / found} if first else {})
        first = first or (found if name == next(iter(case.ways)) else 0.0)


def check(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Raise ValueError if the relative error of a result is above a tolerance. If that is 0, the bits must be equal."""
    if found.shape != expected.shape:
        raise ValueError(f"expected a result of shape {tuple(expected.shape)}, got {tuple(found.shape)}")
    error = ((found.float() - expected.float()).norm() / expected.float().norm()).item()
    if not (error <= tolerance if tolerance else torch.equal(found.view(torch.uint8), expected.view(torch.uint8))):
        raise ValueError(f"the result is wrong: its relative error is {error:.2e}")


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
