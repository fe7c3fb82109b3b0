"""Products of activations with 2:4 weights, of floats or 4-bit codes.

`reference_matmul` defines them; Triton multiplies on a GPU. `choose` picks the product for a layer: on a CPU, and
wherever nothing else is faster, that of the dense weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.sparse import to_sparse_semi_structured

from squeeze.checkpoint import quantized as packing
from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.sparse import SparseTensor, dense_of
from squeeze.kernels import choices
from squeeze.kernels.roofline import GEMM_ROWS, fastest, known
from squeeze.kernels.split_k import GEMV_ROWS

__all__ = ["Packed24", "Runtime", "can_pack", "choose", "dense_weight", "matmul", "prepare", "reference_matmul"]


@dataclass(frozen=True)
class Packed24:
    """A 2:4 weight [O, I] whose inputs are a multiple of 32, packed for kernels.

    values: floats [O, I / 2], or 4-bit codes as int32 [O, I / 16] (quantized.py), two for each group of four.
    places: int32 [O, I / 32], four bits for each group: the place of its first value, then that of its second.
    scales: [O, G], and zeros: uint8 [O, G] or None, for codes. group_size: inputs that share a scale.
    """

    values: torch.Tensor
    places: torch.Tensor
    inputs: int
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    group_size: int = 0

    @property
    def outputs(self) -> int:
        """Output channels, O."""
        return self.values.shape[0]

    @classmethod
    def of(cls, weight: SparseTensor, dtype: torch.dtype = torch.bfloat16) -> "Packed24":
        """Pack a 2:4 weight; `dtype` is the type of its values if they are floats."""
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
        """Return the values that are not pruned, float32 [O, I / 2]."""
        if self.scales is None:
            return self.values.to(torch.float32)
        count = self.inputs // 2
        group = torch.arange(count, device=self.values.device) * 2 // self.group_size
        codes = packing.unpack(self.values, 4, count).to(torch.float32)
        zero = 8 if self.zeros is None else self.zeros.to(torch.float32)[:, group]
        return (codes - zero) * self.scales.to(torch.float32)[:, group]

    def to(self, device: torch.device) -> "Packed24":
        """Copy all tensors to a device."""
        moved = [None if t is None else t.to(device) for t in (self.values, self.places, self.scales, self.zeros)]
        assert moved[0] is not None and moved[1] is not None
        return Packed24(moved[0], moved[1], self.inputs, moved[2], moved[3], self.group_size)


def _two_of(groups: torch.Tensor) -> torch.Tensor:
    """Return two places of each group of four, int64 [..., 2], ascending; places set in `groups` come first."""
    rank = groups.to(torch.int8).argsort(stable=True, dim=-1, descending=True)[..., :2]
    return rank.sort(-1).values


def _zeroed(values: QuantizedTensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the codes, with the code of zero where the mask is not set."""
    if values.zeros is None:
        return values.codes.masked_fill(~mask, 8)
    group = torch.arange(mask.shape[1], device=mask.device) // values.group_size
    return torch.where(mask, values.codes, values.zeros[:, group])


def can_pack(weight: SparseTensor) -> bool:
    """Return whether the kernels take a weight: 2:4, inputs in whole words, and codes (if any) plain 4-bit integers."""
    if weight.pattern != Pattern(2, 4) or weight.shape[1] % 32:
        return False
    values = weight.values
    if not isinstance(values, QuantizedTensor):
        return True
    plain = values.codebook is None and values.global_scale is None and values.outliers is None
    return plain and values.bits == 4 and values.group_size % 4 == 0


def matmul(x: torch.Tensor, packed: Packed24) -> torch.Tensor:
    """Multiply activations x [R, I] by the weight, x @ weight^T, to [R, O] in the dtype of x."""
    if x.device.type == "cpu":
        return reference_matmul(x, packed)
    from squeeze.kernels.sparse24 import kernel  # triton is optional

    return kernel.gemv(x, packed) if len(x) <= GEMV_ROWS else kernel.gemm(x, packed)


def reference_matmul(x: torch.Tensor, packed: Packed24) -> torch.Tensor:
    """Multiply as `matmul` does, in float32 and rounded once: the definition."""
    return (x.to(torch.float32) @ dense_weight(packed).T).to(x.dtype)


def dense_weight(packed: Packed24) -> torch.Tensor:
    """Return the weight float32 [O, I], with zeros in the pruned places."""
    outputs, groups = packed.outputs, packed.inputs // 4
    values = packed.kept()  # [O, I / 2]
    group = torch.arange(2 * groups, device=values.device) // 2
    shift = group % 8 * 4 + torch.arange(2 * groups, device=values.device) % 2 * 2
    column = packed.places[:, group // 8] >> shift & 3
    out = torch.zeros((outputs, packed.inputs), device=values.device)
    return out.scatter_add_(1, group * 4 + column.long(), values)


@dataclass
class Runtime:
    """A 2:4 weight on one device, packed if the kernels take it. Its dense and its semi-structured form are built on
    first use."""

    weight: SparseTensor
    dtype: torch.dtype
    device: torch.device
    packed: Packed24 | None = None
    adapters: tuple[torch.Tensor, torch.Tensor] | None = None  # [R, O] and [R, I]
    _dense: torch.Tensor | None = field(default=None, repr=False)
    _structured: torch.Tensor | None = field(default=None, repr=False)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the dense weight [O, I], adapters included."""
        if self._dense is None or self._dense.dtype != dtype:
            self._dense = self.weight.dequantize(dtype).to(self.device)
        return self._dense

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply activations [R, I] to [R, O] by the fastest product."""
        return self.multiply_by("dense" if torch.is_grad_enabled() and x.requires_grad else choose(self, x), x)

    def multiply_by(self, product: str, x: torch.Tensor) -> torch.Tensor:
        """Multiply activations [R, I] to [R, O] by the named product, one of `products`."""
        if product == "dense" or self.packed is None:
            return torch.nn.functional.linear(x, self.dense(x.dtype))
        if product == "structured":
            y = torch.nn.functional.linear(x, self.structured())
        else:
            y = matmul(x, self.packed)
        if self.adapters is not None:
            left, right = self.adapters
            y = y + (x @ right.T) @ left
        return y

    def products(self, x: torch.Tensor) -> Sequence[str]:
        """Return the products that may be fastest for x [R, I]: "dense", and on a GPU "kernel" and "structured"."""
        names = ["dense"]
        if self.packed is not None and x.device.type == "cuda":
            floats, (outputs, inputs) = self.packed.scales is None, self.weight.shape
            if len(x) <= (GEMM_ROWS if floats else GEMV_ROWS):
                names.append("kernel")
            if floats and x.dtype.itemsize == 2 and outputs % 32 == 0 and inputs % 64 == 0:
                names.append("structured")
        return names

    def structured(self) -> torch.Tensor:
        """Return the weight as torch's semi-structured tensor, for sparse tensor cores."""
        if self._structured is None:
            self._structured = to_sparse_semi_structured(self.weight.sparse().to(self.device, self.dtype))
        return self._structured


def prepare(weight: SparseTensor, dtype: torch.dtype, device: torch.device) -> Runtime:
    """Put a weight on a device in the form that its layer multiplies by."""
    if device.type != "cuda" or not can_pack(weight):
        return Runtime(weight, dtype, device)
    adapters = None
    if weight.adapters is not None:
        sides = dense_of(weight.adapters.left), dense_of(weight.adapters.right)
        adapters = sides[0].to(device, dtype), sides[1].to(device, dtype)
    return Runtime(weight, dtype, device, Packed24.of(weight, dtype).to(device), adapters)


def choose(runtime: Runtime, x: torch.Tensor) -> str:
    """Return the fastest product for x [R, I], measured once for each shape on a device.

    If nothing can be measured, it is the one that the device's published peaks predict, or "dense" if roofline.py does
    not know the device.
    """
    names = runtime.products(x)
    if len(names) == 1:
        return "dense"
    assert runtime.packed is not None
    bits = 4 if runtime.packed.scales is not None else 16
    gpu = known(torch.cuda.get_device_name(runtime.device))
    predicted = fastest(gpu.constants(), *runtime.weight.shape, len(x), bits) if gpu else "dense"
    cached = runtime._dense, runtime._structured
    calls = {name: partial(runtime.multiply_by, name, x) for name in names}
    default = predicted if predicted in names else "dense"
    chosen = choices.fastest(x, _shape_text(runtime, bits), calls, default, "dense")
    runtime._dense, runtime._structured = cached  # forms built only to be measured are dropped
    return chosen


def _shape_text(runtime: Runtime, bits: int) -> str:
    """Describe everything about a weight that decides how long its product takes."""
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
