"""Ways to do the same on a GPU, one after the other in one process: checked, then timed, beside the first of them."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from bench.entry import Row

Call = Callable[[], Any]
NOT_INSTALLED = "not installed"
_ROUNDS = 20


class Gpu:
    """The current CUDA device. apart: bytes of copies of a weight, so that none stays in a cache, as when a model is
    run."""

    where, dtype = "cuda", torch.bfloat16
    apart = 1 << 29
    large = True

    def name(self) -> str:
        return torch.cuda.get_device_name()

    def microseconds(self, calls: Sequence[Call]) -> float:
        """Of one call, where all are made one after the other, in a CUDA graph where that can be."""
        try:
            return graph_time(calls)
        except RuntimeError:
            torch.cuda.synchronize()
            return event_time(lambda: [call() for call in calls]) / len(calls)


@dataclass(frozen=True)
class Contender:
    """calls: from the data of a case, one for each copy of its weight. package: without which it has no place.
    tolerance: how far its result may be from the one that is expected, as a share of that. kernel: the name of what
    computes it, where several can."""

    name: str
    calls: Callable[[Any], Sequence[Call]]
    package: str = ""
    tolerance: float = 1e-2
    kernel: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class Case:
    """What is done in several ways, of which the first is what others are compared with.

    data: made once on a device. expected: the right result. nbytes: that count for a speed, where one is told. advised:
    how many times as fast as the first the ways are that `squeeze advise` speaks of, as it says.
    """

    name: str
    data: Callable[[Any], Any]
    expected: Callable[[Any], torch.Tensor]
    contenders: tuple[Contender, ...]
    nbytes: Callable[[Any], int] | None = None
    advised: Callable[[Any], Mapping[str, float]] | None = None


def contend(case: Case, wanted: Sequence[str], device: Any) -> Iterator[Row]:
    """A row for each contender that is wanted. One that fails says so in its row."""
    first, about = 0.0, {"case": case.name, "device": device.name()}
    data = case.data(device)
    expected = case.expected(data)
    advice = cache(lambda: case.advised(data) if case.advised else {})  # may measure what the device is able to
    for number, one in enumerate(case.contenders):
        if number and one.name not in wanted:
            continue
        if one.package and not installed(one.package):
            yield about | {"way": one.name, "status": NOT_INSTALLED}
            continue
        try:
            calls = one.calls(data)
            check(calls[0](), expected, one.tolerance)
            found = device.microseconds(calls)
            advised = advice() if number else {}
            kernel = one.kernel(data) if one.kernel else ""
        except Exception as error:  # a rival's kernel may raise anything
            yield about | {"way": one.name, "status": f"failed: {type(error).__name__}: {error}"[:200]}
            continue
        first = first or (found if not number else 0.0)
        speed = {"GB/s": case.nbytes(data) / found / 1e3} if case.nbytes else {}
        beside = {"times as fast as": case.contenders[0].name, "x": first / found} if number and first else {}
        beside |= {"advised x": advised[one.name]} if one.name in advised else {}
        ran = {"kernel": kernel} if kernel else {}
        yield about | {"way": one.name, "status": "measured", "us": found, **speed, **beside, **ran}


def installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of what a package lies in
        return False


def check(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Raises ValueError where a result is too far from the one that is expected; 0 asks for equal bits."""
    if found.shape != expected.shape:
        raise ValueError(f"the result has the shape {tuple(found.shape)} in place of {tuple(expected.shape)}")
    if not tolerance:
        if not torch.equal(found.view(torch.uint8), expected.view(torch.uint8)):
            raise ValueError("the result is wrong")
        return
    error = ((found.float() - expected.float()).norm() / expected.float().norm()).item()
    if not error <= tolerance:
        raise ValueError(f"the result is wrong: it is {error:.2e} of the product away from the reference's")


def graph_time(calls: Sequence[Call]) -> float:
    """Microseconds of one call, where all are made one after the other in a CUDA graph: the median of some rounds."""
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


def event_time(call: Call) -> float:
    """Microseconds of a call: the median of some rounds after one to warm up."""
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
