"""What several test files share."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("compiled", deadline=None)  # a first call compiles
settings.load_profile("compiled")

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def find_squeeze(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `python -m squeeze` run from any folder, installed or not."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
