"""Products and other operations on compressed weights, one folder each.

`__init__.py` of a folder defines the operation in plain torch and chooses the implementation; a longer definition is in
`reference.py`. `cpu.py` is compiled by numba. `kernel.py` is Triton, which is imported only when a GPU runs it.
"""
