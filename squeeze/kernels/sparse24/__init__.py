"""Products of activations with 2:4 weights, of floats or 4-bit codes: Triton on a GPU. reference.py defines them.

Which product a layer takes is choose's: on a CPU, and wherever nothing else is faster, that of the dense weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from squeeze.checkpoint import bits as packing
from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.sparse import SparseTensor, dense_of
from squeeze.kernels import choices
from squeeze.kernels.roofline import GEMM_ROWS, fastest, known
from squeeze.kernels.sparse24 import reference
from squeeze.kernels.split_k import GEMV_ROWS

__all__ = ["Packed24", "Runtime", "can_pack", "choose", "matmul", "prepare"]


@dataclass(frozen=True)
class Packed24:
    """A 2:4 weight [O, I], I a multiple of 32, as kernels take it.

    values: [O, I / 2] floats, or int32 [O, I / 16] of 4-bit codes (formats/bits.py), the two of each group in order.
    places: int32 [O, I / 32], for each group four bits: where its first value lies, then where its second does.
    scales: [O, G] and zeros: uint8 [O, G] or None, of codes; group_size: inputs that share a scale.
    """

    values: torch.Tensor
    places: torch.Tensor
    inputs: int
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    group_size: int = 0

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @classmethod
    def of(cls, weight: SparseTensor, dtype: torch.dtype = torch.bfloat16) -> "Packed24":
        """dtype: of the values, where they are floats."""
        outputs, inputs = weight.shape
        groups = weight.mask.reshape(outputs, -1, 4)
        columns = _two_of(groups)  # int64 [O, G, 2]
        nibbles = (columns[..., 0] | columns[..., 1] << 2).to(torch.uint8).reshape(outputs, -1)
        places = packing.pack(nibbles, 4)
        if isinstance(weight.values, QuantizedTensor):
            codes = _zeroed(weight.values, weight.mask).reshape(groups.shape).gather(-1, columns).reshape(outputs, -1)
            scales, zeros = weight.values.scales[0], weight.values.zeros
            return cls(packing.pack(codes, 4), places, inputs, scales, zeros, weight.values.group_size)
        values = weight.sparse().reshape(groups.shape).gather(-1, columns).reshape(outputs, -1)
        return cls(values.to(dtype), places, inputs)

    def kept(self) -> torch.Tensor:
        """float32 [O, I / 2]."""
        if self.scales is None:
            return self.values.to(torch.float32)
        count = self.inputs // 2
        group = torch.arange(count, device=self.values.device) * 2 // self.group_size
        codes = packing.unpack(self.values, 4, count).to(torch.float32)
        zero = 8 if self.zeros is None else self.zeros.to(torch.float32)[:, group]
        return (codes - zero) * self.scales.to(torch.float32)[:, group]

    def to(self, device: torch.device) -> "Packed24":
        moved = [None if t is None else t.to(device) for t in (self.values, self.places, self.scales, self.zeros)]
        assert moved[0] is not None and moved[1] is not None
        return Packed24(moved[0], moved[1], self.inputs, moved[2], moved[3], self.group_size)


def _two_of(groups: torch.Tensor) -> torch.Tensor:
    """Two places of each group of bool [..., 4], those that are set among them, in order."""
    rank = groups.to(torch.int8).argsort(stable=True, dim=-1, descending=True)[..., :2]
    return rank.sort(-1).values


def _zeroed(values: QuantizedTensor, mask: torch.Tensor) -> torch.Tensor:
    """Codes, those outside the mask being that of 0."""
    if values.zeros is None:
        return values.codes.masked_fill(~mask, 8)
    group = torch.arange(mask.shape[1], device=mask.device) // values.group_size
    return torch.where(mask, values.codes, values.zeros[:, group])


def can_pack(weight: SparseTensor) -> bool:
    """Whether a weight is one for these kernels: 2:4, of whole words, and codes on a grid of integers of 4 bits."""
    if weight.pattern != Pattern(2, 4) or weight.shape[1] % 32:
        return False
    values = weight.values
    if not isinstance(values, QuantizedTensor):
        return True
    plain = values.codebook is None and values.global_scale is None and values.outliers is None
    return plain and values.bits == 4 and values.group_size % 4 == 0


def matmul(x: torch.Tensor, packed: Packed24) -> torch.Tensor:
    """x [R, I] @ weight [O, I]^T -> [R, O] in the dtype of x."""
    if x.device.type == "cpu":
        return reference.matmul(x, packed)
    from squeeze.kernels.sparse24 import kernel

    return kernel.gemv(x, packed) if len(x) <= GEMV_ROWS else kernel.gemm(x, packed)


@dataclass
class Runtime:
    """A weight on one device: packed for the kernels where they take it, and dense once that is asked for."""

    weight: SparseTensor
    dtype: torch.dtype
    device: torch.device
    packed: Packed24 | None = None
    adapters: tuple[torch.Tensor, torch.Tensor] | None = None  # [R, O] and [R, I]
    _dense: torch.Tensor | None = field(default=None, repr=False)
    _structured: torch.Tensor | None = field(default=None, repr=False)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """[O, I], adapters included."""
        if self._dense is None or self._dense.dtype != dtype:
            self._dense = self.weight.dequantize(dtype).to(self.device)
        return self._dense

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """x [R, I] -> [R, O]."""
        return self.by("dense" if torch.is_grad_enabled() and x.requires_grad else choose(self, x), x)

    def by(self, way: str, x: torch.Tensor) -> torch.Tensor:
        """As `multiply`, by one of its `ways`."""
        if way == "dense" or self.packed is None:
            return torch.nn.functional.linear(x, self.dense(x.dtype))
        if way == "structured":
            y = torch.nn.functional.linear(x, self.structured())
        else:
            y = matmul(x, self.packed)
        if self.adapters is not None:
            left, right = self.adapters
            y = y + (x @ right.T) @ left
        return y

    def ways(self, x: torch.Tensor) -> Sequence[str]:
        """Those that may be fastest for x [R, I]: "dense", and on a GPU "kernel" and "structured"."""
        found = ["dense"]
        if self.packed is not None and x.device.type == "cuda":
            floats, (outputs, inputs) = self.packed.scales is None, self.weight.shape
            if len(x) <= (GEMM_ROWS if floats else GEMV_ROWS):
                found.append("kernel")
            if floats and x.dtype.itemsize == 2 and outputs % 32 == 0 and inputs % 64 == 0:
                found.append("structured")
        return found

    def structured(self) -> torch.Tensor:
        """torch's semi-structured tensor, for sparse tensor cores."""
        if self._structured is None:
            from torch.sparse import to_sparse_semi_structured

            self._structured = to_sparse_semi_structured(self.weight.sparse().to(self.device, self.dtype))
        return self._structured


def prepare(weight: SparseTensor, dtype: torch.dtype, device: torch.device) -> Runtime:
    """What a layer multiplies by on a device."""
    if device.type != "cuda" or not can_pack(weight):
        return Runtime(weight, dtype, device)
    adapters = None
    if weight.adapters is not None:
        sides = dense_of(weight.adapters.left), dense_of(weight.adapters.right)
        adapters = sides[0].to(device, dtype), sides[1].to(device, dtype)
    return Runtime(weight, dtype, device, Packed24.of(weight, dtype).to(device), adapters)


def choose(runtime: Runtime, x: torch.Tensor) -> str:
    """The one of its ways that is fastest for x [R, I], measured once for a shape on a device. Where nothing can be
    measured, the one that the published peaks of the device say is fastest; "dense" if roofline.py knows nothing."""
    ways = runtime.ways(x)
    if len(ways) == 1:
        return "dense"
    assert runtime.packed is not None
    bits = 4 if runtime.packed.scales is not None else 16
    gpu = known(torch.cuda.get_device_name(runtime.device))
    guessed = fastest(gpu.constants(), *runtime.weight.shape, len(x), bits) if gpu else "dense"
    held = runtime._dense, runtime._structured
    calls = {way: partial(runtime.by, way, x) for way in ways}
    chosen = choices.fastest(x, _what(runtime, bits), calls, guessed if guessed in ways else "dense", "dense")
    runtime._dense, runtime._structured = held  # what was made to be measured goes
    return chosen


def _what(runtime: Runtime, bits: int) -> str:
    """The weight in words: all that decides how long a product takes, and how it is made."""
    packed = runtime.packed
    assert packed is not None
    words = [f"2:4 {'x'.join(map(str, runtime.weight.shape))}", f"{bits} bits"]
    if packed.scales is not None:
        words.append(f"groups of {packed.group_size}")
        if packed.zeros is not None:
            words.append("zero points")
    if runtime.adapters is not None:
        words.append(f"adapters of rank {len(runtime.adapters[1])}")
    return ", ".join(words)
