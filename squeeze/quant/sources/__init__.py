"""Quantised checkpoints as sources: their tensors read as the floats that they stand for, one at a time."""

from squeeze.quant.sources.registry import READERS, floats

__all__ = ["READERS", "floats"]
