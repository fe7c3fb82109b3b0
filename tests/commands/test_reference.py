"""The tables of the docs name every option."""

import squeeze
from squeeze.commands.reference import OPERATIONS, operation_table, options_table
from squeeze.recipes.options import FACTORIZE, PACK, PRUNE, QUANTIZE


def test_tables_name_every_option():
    for operation in OPERATIONS:
        table = operation_table(operation)
        assert table.count("\n") == 2 + len(operation.options())
        assert all(f"| `{key}` |" in table for key in operation.keys if key != "method")
    assert "| `damping` | number | 0.1 | at least 0 |" in options_table(squeeze.GPTQ)
    assert "sparsegpt: " in operation_table(PRUNE) and "--asymmetric" in operation_table(QUANTIZE)
    assert "monarch 4, blast 2" in operation_table(FACTORIZE) and "--no-verify" in operation_table(PACK)
