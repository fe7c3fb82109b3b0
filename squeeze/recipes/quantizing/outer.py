"""Choice of the methods of the input embedding and the output head, before any work.

Embeddings are rounded to nearest, since a lookup has no inputs to calibrate on. A head is calibrated like the matrices
of the blocks. Both have integers in groups along their rows, or 4 bits on the codebook of the blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from squeeze.engine.network import Network, weight_of
from squeeze.engine.outer import embedding_of, head_of, is_tied
from squeeze.engine.writing import Writer
from squeeze.errors import FormatError, OptionError, SqueezeError
from squeeze.options import values_of
from squeeze.quant.blocks import GRIDS
from squeeze.quant.codebooks import Codebook
from squeeze.quant.gptq import GPTQ
from squeeze.quant.method import GridMethod
from squeeze.quant.methods import SCHEMES
from squeeze.quant.rtn import RTN
from squeeze.recipes.options import GGUF, Quantizing
from squeeze.recipes.quantizing.fitting import fitting, scaled_as
from squeeze.recipes.quantizing.writing import DENSE, OWN, SERVED

__all__ = ["DENSE_BITS", "Outer", "check_outer", "outer_methods"]

DENSE_BITS = 16  # the value of `embeddings` and `head` that leaves them as they are
_ASYMMETRIC = 4  # bits up to which zero points are worth their bytes: the error falls by a third for 1.5 % more
_ROWS = 64  # from whose stored bytes those of a matrix follow


@dataclass(frozen=True)
class Outer:
    """Methods of the embedding and the head, by the network's name; if they are one matrix, of the embedding.

    `stored` are the same by the checkpoint's name. `shapes` are by the network's name.
    """

    methods: Mapping[str, GridMethod] = field(default_factory=dict)
    stored: Mapping[str, GridMethod] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def calibrated(self) -> bool:
        return any(method.needs_hessian for method in self.methods.values())

    def bytes_in(self, writer: Writer) -> int:
        """Return the bytes that the matrices take in a format."""
        total = 0
        for name, method in self.methods.items():
            rows, inputs = self.shapes[name]
            few, more = (_stored(method, writer, count, inputs) for count in (_ROWS, 2 * _ROWS))
            total += few + (more - few) * (rows - _ROWS) // _ROWS
        return total


def _stored(method: GridMethod, writer: Writer, rows: int, inputs: int) -> int:
    tensor = method.fallback().compress(torch.zeros(rows, inputs, dtype=torch.bfloat16)).tensor
    return sum(value.nbytes for value in writer.tensors("x", tensor, False).values())


def check_outer(settings: Quantizing) -> None:
    """Raise FormatError if a format does not hold the embedding or the head that is requested."""
    for option in ("embeddings", "head"):
        bits, format = getattr(settings, option), settings.format
        if bits in (None, DENSE_BITS) or format in (OWN, DENSE, GGUF):
            continue
        if option == "embeddings" or format != SERVED:
            where = "transformers does not load quantised embeddings of it" if format == SERVED else "it has none"
            raise FormatError(f"`{option}`: not in the format {format}: {where}; use the format {OWN} or {GGUF}")


def outer_methods(network: Network, method: GridMethod, settings: Quantizing) -> Outer:
    """Return the methods of the embedding and the head.

    Args:
        network: the network.
        method: the common method of the blocks' matrices.
        settings: options, of which `embeddings` and `head` have the bits.

    Raises:
        OptionError: a matrix that is both is to have two numbers of bits, or the method has no integers.
        FormatError: the format does not hold them.
    """
    requested = {"embeddings": settings.embeddings, "head": settings.head}
    default = SCHEMES[settings.scheme].outer if settings.scheme else None  # of those that the model has
    if default is None and all(bits in (None, DENSE_BITS) for bits in requested.values()):
        return Outer()
    table, head, tied = embedding_of(network), head_of(network), is_tied(network)
    if tied:
        if settings.format == SERVED and any(bits not in (None, DENSE_BITS) for bits in requested.values()):
            raise FormatError(
                f"`head`: is one matrix with the embedding here, which the format {SERVED} does not hold: use the "
                f"format {OWN} or {GGUF}"
            )
        requested = {"embeddings": _same(settings.embeddings, settings.head)}
    methods: dict[str, GridMethod] = {}
    for option, name in (("embeddings", table), ("head", head)):
        bits = requested.get(option)
        if bits is None and name is not None and option in requested:
            bits = default
        if bits is None or bits == DENSE_BITS:
            continue
        if name is None:
            raise SqueezeError(f"{network.checkpoint.folder}: `{option}`: the model has no such matrix")
        methods[name] = _method(network, name, bits, method, settings, tied or option == "head")
    weights = {name: weight_of(network.module(name)) for name in methods}
    shapes = {name: (weight.shape[0], weight.shape[1]) for name, weight in weights.items()}
    return Outer(methods, {network.stored_name(name): one for name, one in methods.items()}, shapes)


def _same(embeddings: int | None, head: int | None) -> int | None:
    if embeddings is not None and head is not None and embeddings != head:
        raise OptionError(f"embedding and head are one matrix here, got {embeddings} and {head} bits: name one of them")
    return head if embeddings is None else embeddings


def _method(
    network: Network, name: str, bits: int, method: GridMethod, settings: Quantizing, reads: bool
) -> GridMethod:
    """Return the method of one matrix; `reads` says whether it multiplies hidden states."""
    if not isinstance(method, GridMethod):
        raise OptionError(f"embeddings and heads need a method on a grid, got {method.name}")
    symmetric = method.symmetric and (bits > _ASYMMETRIC or settings.format == SERVED)
    integers: dict[str, Any] = {"bits": bits, "symmetric": symmetric, "group_size": method.group_size}
    integers |= {"clip": method.clip, "grid": _grid(method, bits, settings.format)}
    wanted: GridMethod = RTN(**integers)
    if reads and method.needs_hessian:
        own = {key: value for key, value in values_of(method).items() if isinstance(method, GPTQ)}
        wanted = GPTQ(**{**own, **integers, "outliers": 0, "dynamic": False})
    rows, inputs = weight_of(network.module(name)).shape
    if settings.format == GGUF:
        return wanted.replaced(grid=_block_type(network.stored_name(name), bits, inputs), group_size=64)
    wanted = scaled_as(wanted, settings.format)
    fits, wrong = fitting(wanted, settings.format, rows, inputs)
    if fits is None:
        raise FormatError(f"{network.stored_name(name)}: cannot be stored: {wrong}")
    return fits


def _grid(method: GridMethod, bits: int, format: str) -> str:
    """Return the grid of a matrix: that of the blocks if it is a codebook of these bits, otherwise integers."""
    quantizer = method.as_quantizer()
    alike = isinstance(quantizer, Codebook) and quantizer.bits == bits and len(quantizer.planes) == 1
    return method.grid if alike and format != SERVED else "integer"


def _block_type(name: str, bits: int, inputs: int) -> str:
    """Return the block type of GGUF for rows with this number of inputs."""
    kinds = ("q8_0",) if bits == DENSE_BITS // 2 else ("q4_k", "iq4_nl")
    for kind in kinds:
        if inputs % GRIDS[kind].width == 0:
            return kind
    raise FormatError(f"{name}: {inputs} inputs are not whole blocks of any type of {bits} bits")
