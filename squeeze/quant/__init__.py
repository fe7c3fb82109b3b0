"""Quantisation of weights and of the KV cache: one method a file, each a frozen dataclass of its parameters."""
