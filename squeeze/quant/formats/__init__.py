"""Formats in which quantised checkpoints are stored: each turns a QuantizedTensor into named tensors, and back."""

from squeeze.quant.formats.reading import read
from squeeze.quant.formats.registry import FORMATS, Format, format_of
from squeeze.quant.formats.spec import Grid, QuantizationSpec

__all__ = ["FORMATS", "Format", "Grid", "QuantizationSpec", "format_of", "read"]
