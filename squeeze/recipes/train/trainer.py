"""Training of some parameters of a model, in runs that can be stopped and resumed.

Parameters, Adam's moments and the position in the data are saved every few steps. Parameters and moments are float32.
Products are bfloat16 if the device has units for it (`in_halves`), which makes a step about twice as fast on CPUs with
AMX or AVX512-BF16.
"""

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import disk_errors

__all__ = ["Loss", "Steps", "Trainer", "adam", "cast", "halve_fixed", "in_halves"]

_SAVE_EVERY = 20  # steps
Loss = Callable[[torch.Tensor], torch.Tensor]  # of sequences [n, L], one where a trainer does not say more


class Steps:
    """A training on sequences, int64 [N, L], with `step` steps done in `seconds`.

    `rate` is Adam's largest step size; it rises for a tenth of the time and falls to 0 by a cosine. With a
    `block_rate`, the first stage, which takes the share `blocks` of the time, has that rate and a cosine of its own.
    """

    saves_every_step = False
    blocks = 0.0
    block_rate: float | None = None

    def __init__(self, tokens: torch.Tensor, rate: float, batch: int, seed: int, device: torch.device) -> None:
        self.tokens, self.rate, self.batch, self.seed, self.device = tokens, rate, batch, seed, device
        self.step, self.seconds = 0, 0.0
        self.losses: list[float] = []
        self.is_whole = True  # whether what is trained is that of `step`, and no step is half done
        self._order: tuple[int, torch.Tensor] | None = None  # of the sequences, in which pass over all of them

    def train(self, share: float, rate: float) -> float:
        """Take one step at this rate, when this share of the time has passed, and return the mean loss."""
        raise NotImplementedError

    def save(self) -> None:
        """Save in one step what a stopped run continues from."""
        raise NotImplementedError

    def go(self, seconds: float, steps: int | None, progress: Callable[[int], None] | None) -> None:
        """Train until the time or the steps are used up; an interrupted run is saved."""
        try:
            self._go(seconds, steps, progress)
        except KeyboardInterrupt:
            if self.is_whole and not self.saves_every_step:
                self.save()
            raise

    def _go(self, seconds: float, steps: int | None, progress: Callable[[int], None] | None) -> None:
        while (self.step < steps) if steps is not None else (self.seconds < seconds):
            began = time.perf_counter()
            share = self.step / steps if steps else self.seconds / seconds
            loss = self.train(share, self._rate_at(share))
            self.losses.append(loss)
            self.step, self.is_whole = self.step + 1, True
            self.seconds += time.perf_counter() - began
            if self.saves_every_step or self.step % _SAVE_EVERY == 0:
                self.save()
            if progress:
                progress(1)

    def _rate_at(self, share: float) -> float:
        """Return the rate when this share of the time has passed."""
        rate = self.rate
        if self.block_rate is not None and share < self.blocks:
            rate, share = self.block_rate, share / self.blocks
        elif self.block_rate is not None:
            share = (share - self.blocks) / (1 - self.blocks)
        return rate * min(1.0, (share + 1e-2) / 0.1) * 0.5 * (1 + math.cos(math.pi * share))

    def _batch(self) -> torch.Tensor:
        """Return the sequences of this step; each pass over the data has an order of its own."""
        first = self.step * self.batch
        return torch.stack([self._taken(number) for number in range(first, first + self.batch)]).to(self.device)

    def _taken(self, number: int) -> torch.Tensor:
        turn, place = divmod(number, len(self.tokens))
        if self._order is None or self._order[0] != turn:
            shuffled = torch.randperm(len(self.tokens), generator=torch.Generator().manual_seed(self.seed + turn))
            self._order = turn, shuffled
        return self.tokens[self._order[1][place]]


class Trainer(Steps):
    """A trainer of parameters in memory, by name; `state` is the file from which a stopped run continues."""

    at_once = 1  # sequences whose loss is computed together

    def __init__(
        self, trained: dict[str, nn.Parameter], tokens: torch.Tensor, rate: float, batch: int, seed: int, state: Path
    ) -> None:
        super().__init__(tokens, rate, batch, seed, next(iter(trained.values())).device)
        self.trained, self.state = trained, state
        self.halves, self.cast = in_halves(self.device), cast(self.device)
        self.optimiser = adam(trained.values(), rate)
        if state.is_file():
            self._load()

    def loss_at(self, share: float) -> Loss:
        """Return the loss function for this share of the time."""
        raise NotImplementedError

    def _load(self) -> None:
        saved = torch.load(self.state, weights_only=True)
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(saved["values"][name])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.step, self.seconds, self.losses = saved["step"], saved["seconds"], saved["losses"]

    def save(self) -> None:
        """Save in one step what a stopped run continues from."""
        values = {name: parameter.data for name, parameter in self.trained.items()}
        saved = {"values": values, "optimiser": self.optimiser.state_dict(), "losses": self.losses}
        unfinished = self.state.with_suffix(".unfinished")
        with disk_errors(unfinished):
            torch.save({**saved, "step": self.step, "seconds": self.seconds}, unfinished)
        unfinished.replace(self.state)

    def train(self, share: float, rate: float) -> float:
        """Take one step, some sequences at a time, and return the mean loss."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        total, loss_of = 0.0, self.loss_at(share)
        for ids in torch.split(self._batch(), self.at_once):
            with torch.enable_grad():
                with self.cast:
                    loss = loss_of(ids) * len(ids) / self.batch
                loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        self.is_whole = False
        self.optimiser.step()
        self.optimiser.zero_grad()
        return total


def adam(values: Iterable[nn.Parameter], rate: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(values, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)


def halve_fixed(model: nn.Module) -> None:
    """Cast the matrices that are not trained to bfloat16 once, rather than in every product."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and not module.weight.requires_grad:
            module.weight = nn.Parameter(module.weight.to(torch.bfloat16), requires_grad=False)


def cast(device: torch.device) -> torch.autocast:
    """Return an autocast context with the dtype in which the device multiplies fastest."""
    return torch.autocast(device.type, torch.bfloat16, enabled=in_halves(device))


def in_halves(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 matrices faster than float32 ones."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and any(torch.cpu.get_capabilities().get(one) for one in ("amx_bf16", "avx512_bf16"))
