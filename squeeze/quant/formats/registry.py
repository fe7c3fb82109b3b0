"""The formats of quantised checkpoints: their common protocol, and the table of them."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError, printable
from squeeze.quant.formats.awq import AWQFormat
from squeeze.quant.formats.bitsandbytes import BitsAndBytesFormat
from squeeze.quant.formats.compressed_tensors import CompressedTensorsFormat
from squeeze.quant.formats.gptq import GPTQFormat, version_of
from squeeze.quant.formats.spec import Grid, QuantizationSpec
from squeeze.quant.formats.squeeze import METHOD, SqueezeFormat

__all__ = ["FORMATS", "Format", "format_of"]


class Format(Protocol):
    """A format that stores quantised weights. Modules have the checkpoint's names: "model.layers.0.mlp.up_proj".

    Attributes:
        name: of the format.
        leaves: names of a module's tensors, NAME.LEAF; every quantised module has the first.
        scale_dtype: of scales; None for the model's own dtype.
        transposed: whether it stores matrices that are stored transposed, as GPT-2's are.
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
        """Return whether a `quantization_config` is one of this format."""

    def check(self, spec: QuantizationSpec) -> None:
        """Raise FormatError if the format cannot store a grid of `spec`."""

    def misfit(self, grid: Grid, outputs: int, inputs: int) -> str | None:
        """Return why a weight of this shape cannot be stored on a grid that `check` accepts; None if it can."""

    def needs_one_grid(self, grid: Grid) -> bool:
        """Return whether clients load a grid only if all weights of a folder are on it."""

    def keeps_weight(self, grid: Grid) -> bool:
        """Return whether a module on a grid has a tensor `weight` when it is loaded, as transformers' own modules
        have."""

    def tensors(
        self, name: str, weight: QuantizedTensor, dtype: torch.dtype, grid: Grid | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the stored tensors of a weight, by name.

        Args:
            name: of the module.
            weight: the weight.
            dtype: of scales.
            grid: of the module, if it is more than integers.

        Raises:
            FormatError: the format cannot store the weight.
        """

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor], spec: QuantizationSpec) -> QuantizedTensor:
        """Return the weight of stored tensors. Raises FormatError if tensors are missing or contradict `spec`."""

    def config(self, spec: QuantizationSpec) -> dict[str, Any]:
        """Return the `quantization_config` that describes `spec`. Raises FormatError as `check` does."""

    def spec(self, config: Mapping[str, Any]) -> QuantizationSpec:
        """Return the description of a `quantization_config`, also of other writers. Raises FormatError if it is
        invalid."""


FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        *(GPTQFormat(1), GPTQFormat(2), AWQFormat(), BitsAndBytesFormat()),
        *(CompressedTensorsFormat(), SqueezeFormat()),
    )
}


def format_of(config: Mapping[str, Any]) -> Format:
    """Return the format that a `quantization_config` names. Raises FormatError if it is not in FORMATS."""
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
    raise FormatError(f"expected a quant_method among {known}, got {printable(repr(method))}")
