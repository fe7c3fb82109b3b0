"""The formats of quantised checkpoints: what all have in common, and which there are."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError, printable
from squeeze.quant.formats.awq import AWQFormat
from squeeze.quant.formats.bitsandbytes import BitsAndBytesFormat
from squeeze.quant.formats.compressed_tensors import CompressedTensorsFormat
from squeeze.quant.formats.gptq import GPTQFormat, version_of
from squeeze.quant.formats.own import METHOD, SqueezeFormat
from squeeze.quant.formats.spec import Grid, QuantizationSpec

__all__ = ["FORMATS", "Format", "format_of"]


class Format(Protocol):
    """How one format stores weights. Modules are named as in the checkpoint: "model.layers.0.mlp.up_proj".

    leaves: what is stored of a module, NAME.leaf; the first of them every quantised module has. transposed: whether it
    holds matrices that are stored transposed, as GPT-2's are. scale_dtype: of scales, None for the model's own type.
    """

    @property
    def name(self) -> str: ...

    @property
    def leaves(self) -> tuple[str, ...]: ...

    @property
    def scale_dtype(self) -> torch.dtype | None: ...

    @property
    def transposed(self) -> bool: ...

    def describes(self, config: Mapping[str, Any]) -> bool:
        """Whether a `quantization_config` is one of this format."""

    def check(self, spec: QuantizationSpec) -> None:
        """Raises FormatError, which says what of `spec` this format cannot hold."""

    def misfit(self, grid: Grid, outputs: int, inputs: int) -> str | None:
        """Why a weight of this shape cannot be stored on a grid of it that `check` lets pass; None where it can."""

    def alone(self, grid: Grid) -> bool:
        """Whether clients load a grid only where all weights of a folder are on it."""

    def keeps_weight(self, grid: Grid) -> bool:
        """Return whether a module on a grid loads as transformers' own modules do: with a tensor `weight`, or by our
        loader, which needs none."""

    def tensors(
        self, name: str, weight: QuantizedTensor, dtype: torch.dtype, grid: Grid | None = None
    ) -> dict[str, torch.Tensor]:
        """What is stored for the weight of module `name`, scales in `dtype`. grid: of the module, where it is more than
        integers. Raises FormatError where it cannot be."""

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor], spec: QuantizationSpec) -> QuantizedTensor:
        """The inverse of `tensors`. Raises FormatError where tensors are missing or contradict `spec`."""

    def config(self, spec: QuantizationSpec) -> dict[str, Any]:
        """The `quantization_config` in config.json that describes `spec`. Raises FormatError as `check` does."""

    def spec(self, config: Mapping[str, Any]) -> QuantizationSpec:
        """The inverse of `config`, for files of other writers too. Raises FormatError."""


FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        *(GPTQFormat(1), GPTQFormat(2), AWQFormat(), BitsAndBytesFormat()),
        *(CompressedTensorsFormat(), SqueezeFormat()),
    )
}


def format_of(config: Mapping[str, Any]) -> Format:
    """The format that a `quantization_config` speaks of. Raises FormatError for one that is not among FORMATS."""
    for format in FORMATS.values():
        if format.describes(config):
            return format
    method = config.get("quant_method")
    if method == "gptq":
        version = version_of(config)
        raise FormatError(
            f"the checkpoint_format {printable(repr(version))} of gptq is not supported: only gptq and gptq_v2 are"
        )
    known = f"gptq, awq, bitsandbytes, compressed-tensors and {METHOD}"
    raise FormatError(f"the quant_method {printable(repr(method))} is not one of {known}")
