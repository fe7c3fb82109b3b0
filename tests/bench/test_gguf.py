"""`python -m bench gguf`: what rows are called."""

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from bench.measures.gguf import called


def test_a_bound_is_named_also_where_it_is_a_types_own() -> None:
    assert called("q4_k", "", None) == "q4_k"
    assert called("q3_k", "", None) == called("q3_k", "", 4.0) == "q3_k-bound-4"
    assert called("auto", "90000000", 2.5) == "auto-90000000-bound-2.5"
