"""Times of factorised layers beside dense ones, or of models, taking turns, at batch 1 or a few rows.

Products are compared with those of the dense matrix that a form stands for before anything is timed. A turn goes
through several layers of the same form, as a model does: weights come from memory, and the code is warm. Weights are
random: their values have no influence on times. Ratios are of medians and of the shortest times, below 1 where the
factorised layer is faster.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from bench.entry import Row
from squeeze.factor.form import Form, packed_mask
from squeeze.factor.linear import FactorLinear
from squeeze.factor.lowrank import rank_for
from squeeze.factor.matrices import PIFA, LowRank, RowColumnPruned
from squeeze.factor.networks import Blast, MonarchMatrix, TTMatrix
from squeeze.factor.tensor_network import factors_of
from squeeze.integrations.load_model import load_model
from squeeze.kv.contract import CACHE

BYTES = 1 << 28  # of dense layers in a turn, as no cache should hold them; but 4 to 64 layers


def forms(outputs: int, inputs: int, keep: float, dtype: torch.dtype) -> dict[str, Form]:
    """Random matrices of each form with about `keep` of the values."""

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) / shape[-1] ** 0.5).to(dtype)

    rank = rank_for(outputs, inputs, keep)
    mask = torch.zeros(outputs, dtype=torch.bool)
    mask[torch.randperm(outputs)[:rank]] = True
    pivots = packed_mask(mask)
    found = {"pivoted": PIFA(pivots, random(outputs - rank, rank), random(rank, inputs))}
    rank = rank_for(outputs, inputs, keep, pivoted=False)
    found["two factors"] = LowRank(random(outputs, rank), random(rank, inputs))
    rows = torch.arange(outputs) < round(outputs * keep)
    whole = packed_mask(torch.ones(inputs, dtype=torch.bool))
    size = torch.tensor([outputs, inputs], dtype=torch.int32)
    found["sliced"] = RowColumnPruned(random(int(rows.sum()), inputs), packed_mask(rows), whole, size)
    (a, b), (c, d) = factors_of(outputs, 2), factors_of(inputs, 2)[::-1]
    rank = int(keep * outputs * inputs / (a * c + b * d))
    found["tensor train"] = TTMatrix((random(1, a, c, rank), random(rank, b, d, 1)))
    rank = int(keep * outputs * inputs / (4 * (outputs + inputs)))
    found["monarch"] = MonarchMatrix(random(4, outputs // 4, 4 * rank), random(4, 4 * rank, inputs // 4))
    rank = int(keep * outputs * inputs / (outputs + inputs + 4))
    found["blast"] = Blast(random(2, outputs // 2, rank), random(2, 2, rank), random(2, rank, inputs // 2))
    return found


def each(layers: list[nn.Module], x: torch.Tensor) -> None:
    for layer in layers:
        layer(x)


def measured(runs: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, tuple[float, float]]:
    """Seconds a turn, median and shortest, the runs taking turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if device != "cpu":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - started)
    return {name: (statistics.median(found[rounds // 5 :]), min(found)) for name, found in times.items()}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    with torch.inference_mode():
        if options.models:
            yield from models(options, dtype)
            return
        for shape in options.shapes.split(","):
            yield from layers(shape, options, dtype)


def models(options: argparse.Namespace, dtype: torch.dtype) -> Iterator[Row]:
    """A prompt, and steps of generation after it."""
    loaded = [load_model(folder, dtype, options.device) for folder in options.models]
    prompt = torch.randint(0, 1000, (1, options.prompt), device=options.device)
    for name, part in (("prompt", slice(0, options.prompt)), ("step", slice(0, 1))):
        runs = {}
        for number, model in enumerate(loaded):
            cache = None if name == "prompt" else model(prompt, use_cache=True)[CACHE]
            runs[str(number)] = partial(model, prompt[:, part], use_cache=True, **{CACHE: cache})
        (median, least), (median_2, least_2) = measured(runs, options.rounds, options.device).values()
        about = {"what": name, "form": options.models[1].name, "dtype": options.dtype, "rows": options.prompt}
        ratios = {"ratio": round(median_2 / median, 3), "shortest": round(least_2 / least, 3)}
        yield {**about, "dense_us": round(1e6 * median, 1), **ratios}


def layers(shape: str, options: argparse.Namespace, dtype: torch.dtype) -> Iterator[Row]:
    """A row for every form of a matrix of this shape."""
    outputs, inputs = map(int, shape.split("x"))
    count = min(max(BYTES // (outputs * inputs * dtype.itemsize), 4), 64)
    x = torch.randn(options.rows, inputs).to(options.device, dtype)
    dense = [nn.Linear(inputs, outputs, bias=False, device=options.device, dtype=dtype) for _ in range(count)]
    runs: dict[str, Callable[[], object]] = {"dense": partial(each, dense, x)}
    made = [forms(outputs, inputs, options.keep, dtype) for _ in range(count)]
    for name in made[0]:
        factors = [FactorLinear.of(one[name]).to(options.device) for one in made]
        for layer in factors:
            expected, product = x.float() @ layer.weight.float().T, layer(x).float()
            assert (expected - product).norm() <= 0.02 * expected.norm(), (name, shape)
        runs[name] = partial(each, factors, x)
    times = measured(runs, options.rounds, options.device)
    for name in list(runs)[1:]:
        median, least = (ours / theirs for ours, theirs in zip(times[name], times["dense"], strict=True))
        about = {"what": shape, "form": name, "dtype": options.dtype, "rows": options.rows, "keep": options.keep}
        ratios = {"ratio": round(median, 3), "shortest": round(least, 3)}
        yield {**about, "dense_us": round(1e6 * times["dense"][0] / count, 1), **ratios}
