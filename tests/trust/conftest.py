"""The samples, which are made once for all tests of this folder."""

import pytest

from tests.trust import kept, samples


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, samples.Sample]:
    return kept.make(tmp_path_factory.mktemp("samples"))
