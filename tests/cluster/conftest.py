"""No test waits before what failed is tried again."""

import pytest


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squeeze.cluster.run.PAUSE", 0.0)
