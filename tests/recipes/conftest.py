"""Mixtures of experts, which are made once for all tests of a file."""

import pytest

from tests.makers import mixtures


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Return a function that makes the folder of a kind, once."""
    made = {}

    def folder(kind, fused=False):
        if (kind, fused) not in made:
            made[kind, fused] = mixtures.save(kind, tmp_path_factory.mktemp("mixtures") / kind, fused)
        return made[kind, fused]

    return folder
