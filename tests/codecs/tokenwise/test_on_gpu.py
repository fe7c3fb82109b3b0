"""Lanes on a GPU: the whole way there and back by a device that is none, and what a device that computes otherwise does
to it. test_cuda.py has the kernels."""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch

from squeeze.codecs.tokenwise import bias, lanes, model as tokenwise, on_gpu
from squeeze.codecs.tokenwise.layout import LaneLayout
from squeeze.codecs.tokenwise.log import Cut
from squeeze.codecs.tokenwise.mixing import Batches
from squeeze.codecs.tokenwise.on_gpu import OnGpu
from squeeze.errors import DeviceError
from squeeze.lm import models
from squeeze.numerics.frequencies import Cdf
from tests.makers import one_warp
from tests.makers.tokenwise import TEXT, preset

BARRIER = np.zeros(64, np.int64)


class Fake:
    """Keeps copies of what it is given, and runs a GPU's code on them by one thread of the processor."""

    name, cut = "fake", Cut(slots=4, columns=1, cells=4, contexts=1)

    def put(self, values):
        if isinstance(values, tuple):
            moved = [self.put(value) for value in values]
            return type(values)(*moved) if hasattr(values, "_fields") else tuple(moved)
        if isinstance(values, int):
            return values
        if isinstance(values, np.ndarray):
            return np.array(values, order="C")
        return values.numpy().view(np.uint64) if values.dtype == torch.int64 else values.numpy()

    def get(self, values, out):
        out[...] = values

    def keep(self, name, values, while_there_is):
        pass

    def room(self, *shape, kind="int64"):
        return torch.zeros(shape, dtype=getattr(torch, kind))

    def run(self, name, arguments, threads=None):
        if name == "code_batches":
            m, x, t, log, own, *rest = arguments
            m = m._replace(state=record(m.state))
            x, log = x._replace(state=record(x.state)), log._replace(cursor=record(log.cursor))
            one_warp.code_batches(m, x, t, log, own, *rest, BARRIER)
        elif name == "follow":
            t, counts, *rest = arguments
            tokenwise.follow(t, Cdf(counts, None), *rest)
        else:
            counts, *rest = arguments
            bias.add(Cdf(counts, None), *rest)


def record(array):
    return array[:1].view(np.recarray)[0]


class Faulty(Fake):
    def __init__(self, of, field):
        self._of, self._field = of, field

    def run(self, name, arguments, threads=None):
        super().run(name, arguments, threads)
        if name == self._of:
            self._field(arguments)[0] ^= 1 << 20


def test_nothing_differs():
    assert on_gpu.differing(Fake()) is None


@pytest.mark.parametrize(
    ("kernel", "field", "what"),
    [
        ("follow", lambda arguments: arguments[4], "logits of the model"),
        ("add", lambda arguments: arguments[3], "gradients of biases"),
        ("code_batches", lambda arguments: arguments[1].escape, "coded bytes"),
    ],
)
def test_what_differs_is_named(kernel, field, what):
    assert on_gpu.differing(Faulty(kernel, field)) == what


@pytest.mark.parametrize(("count", "batch"), [(5, 3), (64, 64)])
def test_the_same_bytes(folder, monkeypatch, count, batch):
    loaded = models.find(folder)
    model, chosen = loaded.on("cpu"), replace(preset(2_000, count), batch=batch)
    expected = lanes.encode(TEXT[:2_000], loaded.network, chosen)
    monkeypatch.setattr(lanes, "by_gpu", lambda model, layout, *rest: OnGpu(model, layout, rest[0], Fake(), *rest[1:]))
    monkeypatch.setattr(on_gpu._Counting, "rows", 7)
    assert lanes.encode(TEXT[:2_000], model, chosen) == expected
    layout, payload = expected
    assert lanes.decode(payload, layout, model, chosen).tobytes() == TEXT[:2_000]


class Full(Fake):
    def put(self, values):
        raise DeviceError("fake has too little memory")


@pytest.mark.parametrize(("device", "gpu"), [("cuda:3", Fake()), ("cuda:3", Full()), ("cuda:3", None), ("cpu", Fake())])
def test_who_codes(folder, monkeypatch, device, gpu):
    """The GPU of the model, if it can and has room; else the processor."""
    network, chosen = models.find(folder).network, replace(preset(900, 5), batch=3)
    layout = LaneLayout.of(np.ones(50, np.int64), 5, 16, 3)
    monkeypatch.setattr(on_gpu, "coder_on", {"cuda:3": (gpu, "")}.get)
    monkeypatch.setattr(network, "device", device, raising=False)
    with ExitStack() as stack:
        found = lanes.mixing_of(network, layout, chosen, 1, stack)
    assert type(found) is (OnGpu if device != "cpu" and type(gpu) is Fake else Batches)


@pytest.mark.cuda
def test_a_gpu_does_as_the_processor():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install -e '.[cuda]'")
    from squeeze.codecs.tokenwise.cuda import Gpu

    assert on_gpu.differing(Gpu(0)) is None
