"""A workload for a small library (prebuilt/README.md): kernels of levels 1 and 3 for a text."""

import squeeze
from tests.makers import inputs


def _text() -> None:
    """Compress and restore a text."""
    for level in (1, 3):
        squeeze.decompress(squeeze.compress(inputs.words(4_000), level))


PARTS = {"text": _text}
