"""Operations of a network in exact arithmetic, fused: a definition in plain torch, and Triton kernels that give its
bits.

operations.py chooses who does them on a device. Importing the package does not import Triton.
"""
