"""Every context of levels 1 to 3 and 7 to 9 has a name of its own."""

import pytest

from squeeze.codecs.bytewise import presets
from squeeze.codecs.bytewise.presets import BYTEWISE


@pytest.mark.parametrize("table", [presets.SMALL, presets.MEDIUM, presets.LARGE, {"text": BYTEWISE}])
def test_contexts_have_names(table):
    for preset in table.values():
        names = [presets.name_of(context) for context in preset.contexts]
        assert len(set(names)) == len(preset.contexts)
