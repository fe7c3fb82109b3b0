"""AWQ: input channels with large activations are scaled up before rounding, so that rounding them loses less.

The scale of a channel is s = E|x|^strength (Lin et al. 2023, arXiv 2306.00978). The strength is the one with the least
error of the outputs on calibration text. The scales are folded into the norm before the matrices, into `up_proj` before
`down_proj`, and into `v_proj` before `o_proj`. Heads that share values share scales. `scaled` searches the scales;
`AWQ` rounds the scaled matrices.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from squeeze.checkpoint.architectures import architecture_of
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.engine.calibration import InputStatistics, Recorder
from squeeze.engine.forward import forward
from squeeze.engine.inputs import Inputs
from squeeze.engine.method import HessianError, Result
from squeeze.engine.network import Network, weight_of
from squeeze.quant.gptq import GPTQ
from squeeze.quant.method import GridMethod
from squeeze.quant.methods import AWQOptions
from squeeze.quant.rtn import RTN, encode
from squeeze.quant.smooth import SmoothedCheckpoint, divided

__all__ = ["AWQ", "scaled"]


@dataclass(frozen=True, kw_only=True)
class AWQ(AWQOptions, GridMethod):
    """Round a matrix whose input channels `scaled` has scaled: the least error at 3 to 4 bits without solving for
    weights.

    compress takes W (out, in) and H (in, in). Lin et al. 2023, arXiv 2306.00978.

    Attributes:
        strengths: number of strengths tried, from 0 to below 1.
        sweep: round with GPTQ (default options) instead of to the nearest level. Otherwise the range of each group
            minimises the error weighted with the mean squares of the inputs.
    """

    name: ClassVar[str] = "awq"
    needs_hessian: ClassVar[bool] = True

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[QuantizedTensor]:
        if hessian is None or hessian.shape != (weight.shape[1], weight.shape[1]):
            raise HessianError(f"expected a Hessian of {weight.shape[1]} x {weight.shape[1]}, the inputs of the matrix")
        if self.sweep:
            return GPTQ(**self._grid()).compress(weight, hessian)
        dtype, values = self.stored_as(weight), weight.float()
        params = self.fit(values, hessian.diagonal().float(), dtype)
        return Result(self.assemble(encode(self, values, params), params, dtype))

    def fallback(self) -> RTN:
        return RTN(**self._grid())

    def _grid(self) -> dict[str, Any]:
        options = ("bits", "group_size", "symmetric", "grid", "clip", "scale_dtype", "activations")
        return {name: getattr(self, name) for name in options}


_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GROUPS: Mapping[str, tuple[str, ...]] = {  # the module that scales are folded into: the matrices that read it
    "input_layernorm": _ATTENTION,
    "self_attn.v_proj": ("self_attn.o_proj",),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.up_proj": ("mlp.down_proj",),
}
_LEAST = 1e-4  # smallest scale of a channel


@dataclass
class _InputStatistics:
    """The inputs [T, I] of a group of matrices: their statistics, and the sum of their magnitudes [I]."""

    statistics: InputStatistics
    magnitudes: torch.Tensor | None = None

    def add(self, x: torch.Tensor) -> None:
        rows = x.reshape(-1, x.shape[-1]).float()
        sums = rows.abs().sum(0)
        self.magnitudes = sums if self.magnitudes is None else self.magnitudes + sums
        self.statistics.add(rows)


@torch.inference_mode()
def scaled(
    checkpoint: Checkpoint,
    tokens: Inputs,
    method: Callable[[str], AWQ | None],
    device: str = "cpu",
    bound: float | None = None,
) -> SmoothedCheckpoint:
    """Search the scales of each group of matrices, and return a checkpoint that applies them as it loads tensors.

    Args:
        checkpoint: the original.
        tokens: calibration sequences [N, L].
        method: the method of a matrix by its name in the checkpoint; None if it is not quantised.
        device: where blocks run.
        bound: bound of a token's weight; see InputStatistics.

    Raises:
        ModelError: the architecture does not have Llama's names.
    """
    message = f"{checkpoint.folder}: the channels of architecture {{kind}} cannot be scaled; those of {{known}} can"
    architecture_of(checkpoint.config, message, experts=False)
    network = Network(checkpoint, device)
    out = SmoothedCheckpoint(checkpoint.folder, checkpoint.files)
    for name, block, run in forward(network, tokens):
        groups = {first: [leaf for leaf in leaves if method(f"{name}.{leaf}")] for first, leaves in _GROUPS.items()}
        inputs = {leaves[0]: _InputStatistics(InputStatistics(bound=bound)) for leaves in groups.values() if leaves}
        with Recorder(block, inputs, lambda leaf, x, seen=inputs: seen[leaf].add(x)):  # type: ignore[misc]
            run()
        for before, leaves in groups.items():
            if leaves:
                weights = {leaf: weight_of(block.get_submodule(leaf)) for leaf in leaves}
                methods = {leaf: one for leaf in leaves if (one := method(f"{name}.{leaf}"))}
                shared = _shared(block, before)
                scales = _searched(weights, methods, inputs.pop(leaves[0]), shared).cpu()
                _fold(out, name, before, scales, _spread(scales, shared))
    return out


def _shared(block: nn.Module, producer: str) -> tuple[int, int] | None:
    """Return the channels of a head and the number of heads that share values; None if outputs are read one to one."""
    if not producer.endswith("v_proj"):
        return None
    attention = block.get_submodule("self_attn")
    outputs, inputs = len(weight_of(attention.v_proj)), weight_of(attention.o_proj).shape[1]  # type: ignore[arg-type]
    return int(attention.head_dim), inputs // outputs  # type: ignore[arg-type]


def _searched(
    weights: Mapping[str, torch.Tensor],
    methods: Mapping[str, AWQ],
    inputs: _InputStatistics,
    shared: tuple[int, int] | None,
) -> torch.Tensor:
    """Return the scales [I] with the least error, one for each output of the module before the matrices."""
    statistics, magnitudes = inputs.statistics, inputs.magnitudes
    statistics.finish()
    assert statistics.hessian is not None and magnitudes is not None
    if shared:
        size, heads = shared
        magnitudes = magnitudes.reshape(-1, heads, size).mean(1).flatten()
    magnitudes = (magnitudes / statistics.count).clamp(min=1e-8)
    count, best, least = next(iter(methods.values())).strengths, torch.ones_like(magnitudes), torch.inf
    for number in range(count):
        scales = magnitudes.pow(number / count).clamp(min=_LEAST)
        scales = scales / (scales.max() * scales.min()).sqrt()
        columns = _spread(scales, shared)
        error = sum(_error(weight, methods[leaf], statistics.hessian, columns) for leaf, weight in weights.items())
        if error < least:
            best, least = scales, error
    return best


def _spread(scales: torch.Tensor, shared: tuple[int, int] | None) -> torch.Tensor:
    """Repeat scales of outputs for the heads that read them: scales by input of the matrices."""
    if not shared:
        return scales
    size, heads = shared
    return scales.reshape(-1, 1, size).expand(-1, heads, -1).flatten()


def _error(weight: torch.Tensor, method: AWQ, hessian: torch.Tensor, columns: torch.Tensor) -> float:
    """Return the squared error of the outputs, tr(E H E^T), for E = round(W diag(s)) diag(s)^-1 - W."""
    rounded = method.fallback().replaced(clip=False).apply(weight * columns).dequantize()
    difference = rounded / columns - weight
    return float(((difference @ hessian) * difference).sum())


def _fold(out: SmoothedCheckpoint, block: str, producer: str, scales: torch.Tensor, columns: torch.Tensor) -> None:
    """Add the scales of one group to the checkpoint that applies them."""
    if producer.endswith("norm"):
        name = f"{block}.{producer}.weight"
        norm = Checkpoint(out.folder, out.files).load([name])[name]
        out.norms[name], out.factors[name] = divided(norm, scales)
        return
    out.rows[f"{block}.{producer}"] = scales
    for leaf in _GROUPS[producer]:
        out.columns[f"{block}.{leaf}"] = columns
