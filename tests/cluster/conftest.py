"""No test waits before a retry, and a large file is at hand."""

from pathlib import Path

import pytest

from squeeze.cluster.operations import File
from tests.makers.cluster_runs import BLOCK, made, some_bytes


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squeeze.cluster.run.PAUSE", 0.0)


@pytest.fixture
def large(tmp_path: Path) -> File:
    return made(tmp_path, "large", some_bytes(20 * BLOCK + 77))
