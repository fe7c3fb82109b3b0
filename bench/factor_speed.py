"""Times of factorised layers beside dense ones, or of models, taking turns, at batch 1 or a few rows.

python bench/factor_speed.py [--keep 0.8] [--rows 1] [--shapes 576x576,1536x576] [--rounds 200] [--dtype float32]
    [--device cuda]
python bench/factor_speed.py --models ORIGINAL FACTORISED [--prompt 16] [--rounds 20] [--dtype float32]

Products are compared with those of the dense matrix that a form stands for before anything is timed. A turn goes
through several layers of the same form, as a model does: weights come from memory, and the code is warm. Weights are
random: their values have no influence on times. Ratios are of medians and of the shortest times, below 1 where the
factorised layer is faster.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from squeeze.factor.form import Form, packed_mask
from squeeze.factor.linear import FactorLinear
from squeeze.factor.lowrank import rank_for
from squeeze.factor.matrices import LowRank, Pivoted, Sliced
from squeeze.factor.networks import Blast, MonarchMatrix, TTMatrix
from squeeze.factor.tensor_network import factors_of
from squeeze.integrations.load_model import load_model

BYTES = 1 << 28  # of dense layers in a turn, as no cache should hold them; but 4 to 64 layers
SHAPES = "576x576,1536x576,576x1536,4096x4096,11008x4096"


def forms(outputs: int, inputs: int, keep: float, dtype: torch.dtype) -> dict[str, Form]:
    """Random matrices of each form with about `keep` of the values."""

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) / shape[-1] ** 0.5).to(dtype)

    rank = rank_for(outputs, inputs, keep)
    mask = torch.zeros(outputs, dtype=torch.bool)
    mask[torch.randperm(outputs)[:rank]] = True
    pivots = packed_mask(mask)
    found = {"pivoted": Pivoted(pivots, random(outputs - rank, rank), random(rank, inputs))}
    rank = rank_for(outputs, inputs, keep, pivoted=False)
    found["two factors"] = LowRank(random(outputs, rank), random(rank, inputs))
    rows = torch.arange(outputs) < round(outputs * keep)
    whole = packed_mask(torch.ones(inputs, dtype=torch.bool))
    size = torch.tensor([outputs, inputs], dtype=torch.int32)
    found["sliced"] = Sliced(random(int(rows.sum()), inputs), packed_mask(rows), whole, size)
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


def models(args: argparse.Namespace, dtype: torch.dtype) -> None:
    """A prompt, and steps of generation after it."""
    loaded = [load_model(folder, dtype, args.device) for folder in args.models]
    prompt = torch.randint(0, 1000, (1, args.prompt), device=args.device)
    for name, part in (("prompt", slice(0, args.prompt)), ("step", slice(0, 1))):
        runs = {}
        for number, model in enumerate(loaded):
            cache = None if name == "prompt" else model(prompt, use_cache=True).past_key_values
            runs[str(number)] = partial(model, prompt[:, part], past_key_values=cache, use_cache=True)
        (median, least), (median_2, least_2) = measured(runs, args.rounds, args.device).values()
        print(
            f"{name}: {1e3 * median:.1f} ms, factorised {median_2 / median:.2f} of that, shortest {least_2 / least:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=float, default=0.8)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of factors and inputs")
    parser.add_argument("--models", type=Path, nargs=2, metavar=("ORIGINAL", "FACTORISED"))
    parser.add_argument("--prompt", type=int, default=16, help="tokens")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    with torch.inference_mode():
        if args.models:
            models(args, dtype)
            return
        for shape in args.shapes.split(","):
            outputs, inputs = map(int, shape.split("x"))
            count = min(max(BYTES // (outputs * inputs * dtype.itemsize), 4), 64)
            x = torch.randn(args.rows, inputs).to(args.device, dtype)
            dense = [nn.Linear(inputs, outputs, bias=False, device=args.device, dtype=dtype) for _ in range(count)]
            runs: dict[str, Callable[[], object]] = {"dense": partial(each, dense, x)}
            made = [forms(outputs, inputs, args.keep, dtype) for _ in range(count)]
            for name in made[0]:
                layers = [FactorLinear.of(one[name]).to(args.device) for one in made]
                for layer in layers:
                    wanted, found = x.float() @ layer.weight.float().T, layer(x).float()
                    assert (wanted - found).norm() <= 0.02 * wanted.norm(), (name, shape)
                runs[name] = partial(each, layers, x)
            times = measured(runs, args.rounds, args.device)
            print(f"{shape}, {args.rows} rows: dense {1e6 * times['dense'][0] / count:.0f} us", flush=True)
            for name in list(runs)[1:]:
                median, least = (ours / theirs for ours, theirs in zip(times[name], times["dense"], strict=True))
                print(f"  {name}: {median:.2f} of that, shortest {least:.2f}", flush=True)


if __name__ == "__main__":
    main()
