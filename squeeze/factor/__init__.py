"""Matrices as products of smaller ones: their forms, layers that multiply by them, whole checkpoints in them."""

METHOD = "squeeze-factorised"  # of the quantization_config
VERSION = 1
