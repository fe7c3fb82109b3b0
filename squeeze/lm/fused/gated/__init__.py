"""SwiGLU, a rotation by Hadamard's matrix, and the rounding of what the next product multiplies. reference.py defines
it."""
