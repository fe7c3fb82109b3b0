"""What several test files share."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # unset, it warns

import pytest
from hypothesis import settings

settings.register_profile("compiled", deadline=None)  # a first call compiles
settings.load_profile("compiled")

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def find_squeeze(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `python -m squeeze` run from any folder, installed or not."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an untrained network of one of networks.KINDS."""
    from tests.makers import networks

    return cache(lambda kind: networks.save(kind, tmp_path_factory.mktemp("models") / kind))
