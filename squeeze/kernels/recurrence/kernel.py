"""Linear recurrences in Triton: a program walks over the time steps of some channels of a row, a tile at once.

Within a tile, pairs of decay and update are combined by an associative scan (Blelloch 1990); its last state starts the
next tile. The backward pass is the same scan from the end to the beginning.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

STEPS, CHANNELS = 64, 32  # of a tile


@triton.jit  # type: ignore[untyped-decorator]
def _combine(first_decay, first, second_decay, second):  # type: ignore[no-untyped-def]
    return first_decay * second_decay, second + second_decay * first


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    states, decay, update, start, time, width, STEPS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    step = tl.arange(0, STEPS)[:, None]
    carried = tl.load(start + row * width + channel, mask=channel < width, other=0.0)
    for begin in range(0, time, STEPS):
        place = (row * time + begin + step) * width + channel[None, :]
        present = (begin + step < time) & (channel < width)[None, :]
        a = tl.load(decay + place, mask=present, other=1.0)
        b = tl.load(update + place, mask=present, other=0.0)
        a, b = tl.associative_scan((a, b), 0, _combine)
        tile = b + a * carried[None, :]
        tl.store(states + place, tile, mask=present)
        carried = tl.sum(tl.where(step == STEPS - 1, tile, 0.0), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    of_decay, of_update, of_start, decay, states, start, gradient, time, width,
    STEPS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    step = tl.arange(0, STEPS)[:, None]
    inside = channel < width
    first = tl.load(start + row * width + channel, mask=inside, other=0.0)
    carried = tl.zeros((CHANNELS,), tl.float32)  # derivative by the first state after the tile
    tiles = tl.cdiv(time, STEPS)
    for tile in range(tiles):
        t = (tiles - 1 - tile) * STEPS + step
        place = (row * time + t) * width + channel[None, :]
        present = (t < time) & inside[None, :]
        after = tl.load(decay + place + width, mask=(t + 1 < time) & inside[None, :], other=0.0)
        total = tl.load(gradient + place, mask=present, other=0.0)
        after, total = tl.associative_scan((after, total), 0, _combine, reverse=True)
        total += after * carried[None, :]
        before = tl.load(states + place - width, mask=present & (t > 0), other=0.0)
        before = tl.where(t > 0, before, first[None, :])
        tl.store(of_update + place, total, mask=present)
        tl.store(of_decay + place, total * before, mask=present)
        carried = tl.sum(tl.where(step == 0, total, 0.0), 0)
    last = tl.load(decay + row * time * width + channel, mask=inside, other=0.0)
    tl.store(of_start + row * width + channel, carried * last, mask=inside)


def forward(decay: Tensor, update: Tensor, start: Tensor) -> Tensor:
    """Compute the states as `reference_scan` does."""
    decay, update, start = decay.contiguous(), update.contiguous(), start.contiguous()
    batch, time, width = update.shape
    states = torch.empty_like(update)
    if states.numel():
        sizes = {"STEPS": STEPS, "CHANNELS": CHANNELS}
        with torch.cuda.device_of(states):
            _forward[batch, triton.cdiv(width, CHANNELS)](states, decay, update, start, time, width, **sizes)
    return states


def backward(decay: Tensor, states: Tensor, start: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the derivatives by decay, update and start from `gradient`, those by the states."""
    decay, start, gradient = decay.contiguous(), start.contiguous(), gradient.contiguous()
    batch, time, width = states.shape
    of_decay, of_update, of_start = torch.empty_like(states), torch.empty_like(states), torch.zeros_like(start)
    if states.numel():
        with torch.cuda.device_of(states):
            _backward[batch, triton.cdiv(width, CHANNELS)](
                *(of_decay, of_update, of_start, decay, states, start, gradient, time, width),
                STEPS=STEPS,
                CHANNELS=CHANNELS,
            )
    return of_decay, of_update, of_start
