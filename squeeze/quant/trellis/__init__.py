"""Trellis-coded weights: the method, the tensor that it makes, and how that is stored."""
