import pytest


@pytest.fixture(autouse=True)
def drawn_anew(request: pytest.FixtureRequest) -> None:
    """Each test draws the same matrices, whatever ran before it."""
    draws = getattr(request.module, "draws", None)
    if draws:
        draws.restart()
