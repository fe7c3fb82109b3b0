"""Quantised checkpoints as sources: their tensors dequantised to floats, one at a time."""

from squeeze.quant.sources.registry import READERS, floats

__all__ = ["READERS", "floats"]
