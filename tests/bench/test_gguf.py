"""Names of rows of `python -m bench gguf`."""

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from bench.measures.gguf import row_name


def test_a_row_names_its_bound_even_if_it_is_the_default_of_its_type() -> None:
    assert row_name("q4_k", None) == "q4_k"
    assert row_name("q3_k", None) == row_name("q3_k", 4.0) == "q3_k-bound-4"
