"""The names of the package: what runs, what type checkers are told, and what is missing."""

import ast
from pathlib import Path

import pytest

import squeeze

ROOT = Path(squeeze.__file__).parent


def test_type_checkers_are_told_every_name():
    tree = ast.parse((ROOT / "__init__.pyi").read_text())
    told = {alias.asname: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == {**squeeze.HOMES, "__version__": "squeeze.version"}
    assert set(squeeze.__all__) == set(squeeze.HOMES)
    assert all(getattr(squeeze, name) is not None for name in squeeze.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        squeeze.nothing  # noqa: B018
