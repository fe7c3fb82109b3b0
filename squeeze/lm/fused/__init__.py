"""Operations of a network in exact arithmetic, several at once: each a folder of a definition in plain torch and a
Triton kernel that gives its bits.

operations.py says who does them on a device. Importing the package imports no Triton.
"""
