"""A residual sum, and the norm and rounding of what a product behind it multiplies. reference.py defines it."""
