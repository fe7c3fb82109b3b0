"""Triton kernels compiled for GPUs that are not there: whether they keep what they promise, and what bounds them.

On sm_80, sm_90 and sm_100 each kernel that promises the bits of its reference is held to the rules of
squeeze/kernels/proof.py. On the GPUs of squeeze/kernels/roofline.py an estimate says how near to its roofline a kernel
can come. Of products with packed integers the instructions of a turn of their loop are counted. Nothing is run, so
nothing is timed. A kernel is named where it spills, and where it cannot reach half.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict

from bench.entry import Row

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # what kernels get that do not say; unset, Triton warns

from squeeze.errors import SqueezeError
from squeeze.kernels.compiled import Compiled, compile_launch
from squeeze.kernels.estimate import estimate
from squeeze.kernels.launch import Launch, every
from squeeze.kernels.loops import main_turn
from squeeze.kernels.proof import ARCHITECTURES, broken
from squeeze.kernels.roofline import GPUS

HALF = 0.5


def rows(options: argparse.Namespace) -> Iterator[Row]:
    wanted = sorted({*ARCHITECTURES, *(gpu.architecture for gpu in GPUS.values())})
    failed = []
    for launch in every():
        if options.only not in launch.name:
            continue
        try:
            kernels = {architecture: compile_launch(launch.run, architecture) for architecture in wanted}
        except SqueezeError as error:
            raise SystemExit(f"Error: {error}") from None
        for architecture in ARCHITECTURES:
            row = proved(launch, kernels[architecture])
            failed += [f"{launch.name} on {row['on']}: {row['broken']}"] * bool(row["broken"])
            yield row
        for name, gpu in GPUS.items():
            found = estimate(launch, kernels[gpu.architecture], gpu)
            yield {
                **{"launch": launch.name, "on": name, "share": found.share, "bound": found.bound},
                **{"roofline us": 1e6 * found.roofline, "at least us": 1e6 * found.seconds},
                "named": "cannot reach half of its roofline" if found.share < HALF else None,
            }
    if failed:
        raise SystemExit("\n".join(f"Error: {line}" for line in failed))


def proved(launch: Launch, kernel: Compiled) -> Row:
    return {
        **{"launch": launch.name, "on": f"sm_{kernel.architecture}", "exact": launch.exact},
        **{"registers": kernel.registers, "spilled": kernel.spilled, "shared": kernel.shared},
        "broken": "; ".join(broken(kernel)) or None if launch.exact else None,
        "named": "spills" if kernel.spilled else None,
        **_turn(launch, kernel),
    }


def _turn(launch: Launch, kernel: Compiled) -> Row:
    """What a product with packed integers does in a turn of its loop."""
    if not launch.name.startswith("w4a16") or (turn := main_turn(kernel.sass)) is None:
        return {}
    weights = launch.operations / 2 / len(launch.result)
    threads = 32 * kernel.warps * kernel.programs
    return {
        "turn": asdict(turn),
        "a weight": turn.instructions * max(launch.trips(kernel.arguments)) * threads / weights,
    }
