"""The small pretrained network of levels 5 and 6 in torch, with a trainable integer change.

A weight is the package's number plus a whole number of steps. The trained change is rounded in each training step, so
that what is stored computes what was trained; gradients ignore the rounding (Bengio et al. 2013, arXiv:1308.3432). The
tables of the last bytes are not trained: none of their numbers moved by a step in trainings of minutes.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from squeeze.codecs.recurrent import change
from squeeze.codecs.recurrent.change import Change
from squeeze.codecs.recurrent.weights import GRAMS
from squeeze.recipes.train.byte_network import ByWords, Shape, State

__all__ = ["TunedNetwork"]

_HALF = 7.5  # the middle of the numbers from 0 to 15
_INSIDE = {  # of a block, by the names of tensors
    "into": "recurrence.into.weight",
    "out": "recurrence.out.weight",
    "taps": "recurrence.taps",
    "keeping": "recurrence.keeping",
    "gate_up": "gate_up.weight",
    "down": "down.weight",
}


class _Part(nn.Module):
    """The numbers of one tensor, [rows, columns], with a trained change in units of each row's typical size."""

    numbers: Tensor
    scale: Tensor
    unit: Tensor

    def __init__(self, numbers: np.ndarray, scale: np.ndarray, unit: np.ndarray, top: float) -> None:
        super().__init__()
        self.top = top
        self.register_buffer("numbers", torch.from_numpy(numbers.astype(np.float32)), persistent=False)
        self.register_buffer("scale", torch.from_numpy(scale.astype(np.float32))[:, None], persistent=False)
        self.register_buffer("unit", torch.from_numpy(unit.astype(np.float32))[:, None], persistent=False)
        self.change = nn.Parameter(torch.zeros(numbers.shape))

    @classmethod
    def of(cls, tensor: np.ndarray, scale: np.ndarray | None, shape: tuple[int, int]) -> "_Part":
        """Create a part from a tensor of the file and the scales of its rows, if it has any."""
        if scale is None:
            ones = np.ones(shape[0])
            return cls(tensor.reshape(shape) / change.STEP, change.STEP * ones, ones / change.STEP, np.inf)
        numbers, top = change.numbers(tensor).astype(np.float64), float(change.TOP)
        if tensor.dtype == np.uint8:  # n stands for 2n - 15
            numbers, scale, top = numbers - _HALF, 2 * scale, _HALF
        return cls(numbers, scale, np.sqrt((numbers**2).mean(1)), top)

    def forward(self) -> Tensor:
        """Return the weights, float32."""
        wanted = self.numbers + self.change * self.unit
        return (wanted + (self.numbers + self._added() - wanted).detach()) * self.scale

    def _added(self) -> Tensor:
        rounded = torch.round(self.change.detach() * self.unit)
        return (self.numbers + rounded).clamp(-self.top, self.top) - self.numbers

    def added(self) -> np.ndarray:
        """Return what is added to the numbers, int64 [rows, columns]."""
        return np.asarray(np.rint(self._added().double().cpu().numpy()).astype(np.int64))


class _Table(nn.Module):
    """Embeddings by row, which are not trained."""

    numbers: Tensor
    scale: Tensor

    def __init__(self, tensor: np.ndarray, scale: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.from_numpy(tensor.copy()), persistent=False)
        self.register_buffer("scale", torch.from_numpy(scale.copy()), persistent=False)

    def forward(self, row: Tensor) -> Tensor:
        both = self.numbers[row]
        return (torch.cat([both & 15, both >> 4], -1).float() * 2 - 15) * self.scale[row][..., None]


class TunedNetwork(nn.Module):
    """The network of the given tensors (codecs/recurrent/weights.py), with a change that is zero at first."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        shapes = change.shapes(tensors)
        self.parts = {name: _Part.of(tensors[name], tensors.get(f"{name}.scale"), shapes[name]) for name in shapes}
        self.of_parts = nn.ModuleList(self.parts.values())
        self.model = ByWords(_shape(tensors)).requires_grad_(False)
        self.model.grams = nn.ModuleList(
            _Table(tensors[f"grams.{k}"], tensors[f"grams.{k}.scale"]) for k in range(len(GRAMS))
        )

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {name: part.change for name, part in self.parts.items()}

    def weights(self) -> dict[str, Tensor]:
        """Return the current weights by name."""
        found = {_name_in_model(name): part() for name, part in self.parts.items()}
        return {name: weight[0] if name.endswith("keeping") else weight for name, weight in found.items()}

    def start(self, batch: int) -> State:
        return self.model.start(batch)

    def forward(self, data: Tensor, state: State, weights: dict[str, Tensor]) -> tuple[Tensor, State]:
        """Compute what ByWords.forward does, with the weights that `weights` returned."""
        result: tuple[Tensor, State] = functional_call(self.model, weights, (data, state))
        return result

    def change(self) -> Change:
        """Return the trained change."""
        return {name: part.added() for name, part in self.parts.items()}


def _name_in_model(name: str) -> str:
    stack, _, rest = name.partition(".")
    if not rest:
        return f"{name}.weight"
    block, _, part = rest.partition(".")
    return f"{stack}.blocks.{block}.{_INSIDE[part]}"


def _shape(tensors: Mapping[str, np.ndarray]) -> Shape:
    """Return the Shape of tensors, whose norms' gains are folded into matrices and whose word matrices are on their
    grid.
    """
    return Shape(
        width=tensors["embedding"].shape[1],
        layers=_blocks(tensors, "before") + _blocks(tensors, "after"),
        feed_forward=tensors["after.0.gate_up"].shape[0] // 2,
        word_width=tensors["up"].shape[0],
        word_layers=_blocks(tensors, "words"),
        word_feed_forward=tensors["words.0.gate_up"].shape[0] // 2,
        gram_rows=tensors[f"grams.{len(GRAMS) - 1}"].shape[0],
        word_bits=0,
    )


def _blocks(tensors: Mapping[str, np.ndarray], stack: str) -> int:
    return sum(name.startswith(f"{stack}.") and name.endswith(".taps") for name in tensors)
