"""Sparse weights: which of a matrix's weights stay, what they become, and how little they can be stored in."""
