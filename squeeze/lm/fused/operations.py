"""The operations of a network between products, and the choice of plain torch or Triton kernels for them.

Kernels are chosen if a GPU gives the bits of plain torch with them, for the sizes of the network.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from squeeze.lm.fused import reference
from squeeze.lm.fused.attention import BLOCK, LayerCache, Norms, Queries, Rotary, Shape, reference as attention
from squeeze.lm.fused.reference import Product
from squeeze.numerics.int8 import TOP
from squeeze.numerics.rotation import block_of, factor
from squeeze.numerics.tensors import Products

__all__ = ["TORCH", "Operations", "Sizes", "choose_operations", "first_difference", "fused"]


class Operations(NamedTuple):
    """Functions with the signatures of the references, and a name for the set."""

    name: str
    normalise: Callable[[Tensor, Product | None, float, Tensor], tuple[Tensor, Tensor]]
    quantise: Callable[[Tensor, Tensor], Tensor]
    gate: Callable[[Product, int, float, Tensor], Tensor]
    rotary: Callable[[Tensor, float, Tensor, Shape, int], Rotary]
    heads: Callable[[Product, Shape, Norms, Rotary, Tensor, LayerCache], Queries]
    attend: Callable[[Queries, Shape, Tensor, LayerCache], Tensor]
    cumulate: Callable[[Product], Tensor]


TORCH = Operations(
    *("torch", reference.normalise, reference.quantise, reference.gate),
    *(attention.rotary, attention.heads, attention.attend, reference.cumulate),
)


def fused() -> Operations:
    """Return the Triton kernels.

    Raises:
        ImportError: if Triton is not installed.
    """
    from squeeze.lm.fused import kernels
    from squeeze.lm.fused.attention import kernel

    return Operations(
        *("fused kernels", kernels.normalise, kernels.quantise, kernels.gate),
        *(kernel.rotary, kernel.heads, kernel.attend, kernels.cumulate),
    )


_CALLS = (32, 1), (3, 17)  # lanes and positions of calls: a step, and a prefill
_RING = 5  # blocks
_FACTORS = 24  # bits of positions


class Sizes(NamedTuple):
    """The sizes of a network for which kernels are compiled.

    `width` and `feed_forward` are numbers of a row, `factor` multiplies cosines and sines.
    """

    width: int
    feed_forward: int
    leaves: int
    shape: Shape
    biased: bool = False
    normed: bool = False
    epsilon: float = 1e-5
    factor: float = 1.0


def choose_operations(device: str, products: Products, sizes: Sizes) -> tuple[Operations, str]:
    """Return the operations for a device, and the reason if they are not the kernels, else "".

    Args:
        device: its name in torch.
        products: integer products of the device.
        sizes: of the network.
    """
    if not device.startswith("cuda"):
        return TORCH, f"{device} is no GPU"
    try:
        with torch.cuda.device(device):
            kernels = fused()
            wrong = first_difference(kernels, device, products, sizes)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any error of a compiler or driver: torch works as well
        return TORCH, f"kernels do not run: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    return (TORCH, f"the kernel of {wrong} gives other bits") if wrong else (kernels, "")


def first_difference(result: Operations, device: str, products: Products, sizes: Sizes) -> str | None:
    """Return the name of the first operation that gives other bits than plain torch, or None.

    Args:
        result: the operations to test.
        device: its name in torch.
        products: integer products of the device.
        sizes: of the network.
    """
    for lanes, n in _CALLS:
        for name, results in _Calls(device, products, sizes, lanes, n).each():
            if not all(map(torch.equal, results(result), results(TORCH))):
                return name
    return None


class _Calls:
    """A call of every operation, on random numbers of all magnitudes."""

    def __init__(self, device: str, products: Products, sizes: Sizes, lanes: int, n: int):
        self._device, self._products, self._sizes, self._lanes, self._n = device, products, sizes, lanes, n
        self._rows, self._random = lanes * n, np.random.default_rng(lanes)

    def each(self) -> Iterator[tuple[str, Callable[[Operations], tuple[Tensor, ...]]]]:
        """Yield names of operations, and functions that return their results."""
        sizes, shape = self._sizes, self._sizes.shape
        x, product = self._floats(self._rows, sizes.width), self._product(sizes.width, sizes.biased)
        yield "normalise", lambda by: self._rounded(by.normalise, sizes.width, x, product, sizes.epsilon)
        yield "quantise", lambda by: self._rounded(by.quantise, sizes.width, x)
        gates, block = self._product(2 * sizes.feed_forward), block_of(sizes.feed_forward)
        yield "gate", lambda by: self._rounded(by.gate, sizes.feed_forward, gates, block, float(factor(block)))
        first = self._random.integers(0, 3 * BLOCK * (_RING + 1), (self._lanes, 1))
        positions = self._moved(first + np.arange(self._n))
        table = self._moved(self._random.uniform(-1, 1, (2, _FACTORS, shape.size // 2)))
        most = 1 << _FACTORS - 1
        rotary = TORCH.rotary(table, sizes.factor, positions, shape, most)
        yield "rotary", lambda by: tuple(by.rotary(table, sizes.factor, positions, shape, most))
        qkv = self._product((shape.heads + 2 * shape.groups) * shape.size, sizes.biased)
        query, key = (self._floats(1, shape.size)[0] if sizes.normed else None for _ in range(2))
        kept, norms = self._kept(), Norms(query, key, sizes.epsilon)

        def heads(by: Operations) -> tuple[Tensor, ...]:
            written = LayerCache(*(part.clone() for part in kept))
            return *by.heads(qkv, shape, norms, rotary, positions, written), *written

        yield "heads", heads
        queries = TORCH.heads(qkv, shape, norms, rotary, positions, kept)
        yield "attend", lambda by: (by.attend(queries, shape, positions, kept),)
        logits = self._product(sizes.leaves, True)
        yield "cumulate", lambda by: (by.cumulate(logits),)

    def _moved(self, values: np.ndarray) -> Tensor:
        return torch.tensor(values, device=self._device)

    def _floats(self, *shape: int) -> Tensor:
        sizes = 10.0 ** self._random.integers(-6, 4, (shape[0], 1))
        return self._moved((self._random.normal(size=shape) * sizes).astype(np.float32))

    def _product(self, columns: int, biased: bool = False) -> Product:
        sums = self._random.integers(-(1 << 24), 1 << 24, (self._rows, columns), np.int32)
        of_rows, of_columns = (
            self._moved(self._random.uniform(1e-5, 1e-4, size).astype(np.float32)) for size in (self._rows, columns)
        )
        bias = self._floats(1, columns)[0] if biased else None
        return Product(self._moved(sums), of_rows, of_columns, bias)

    def _rounded(
        self, operation: Callable[..., Tensor | tuple[Tensor, ...]], width: int, *given: object
    ) -> tuple[Tensor, ...]:
        """Return the results of an operation and the integers that it writes."""
        out = self._products.room(self._rows, width, self._device).zero_()
        found = operation(*given, out)
        return out, *((found,) if isinstance(found, Tensor) else found)

    def _kept(self) -> LayerCache:
        shape = self._sizes.shape
        sizes = 2, self._lanes, shape.groups, BLOCK * (1 + _RING)
        integers = self._random.integers(-TOP, TOP + 1, (*sizes, shape.size), np.int8)
        return LayerCache(
            self._moved(integers), self._moved(self._random.uniform(1e-4, 1e-2, sizes).astype(np.float32))
        )
