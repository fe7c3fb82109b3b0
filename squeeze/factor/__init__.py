"""Factorised matrices, products of smaller ones: methods, forms, and layers that multiply by them."""

METHOD = "squeeze-factorised"  # of the quantization_config
VERSION = 1
