"""Presets of levels 4 to 6."""

from squeeze.codecs.deep import presets as deeplevels
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.stream import levels

DEEP = [n for n, row in levels.LEVELS.items() if isinstance(row.models("text"), DeepPreset)]


def test_every_kind_of_content_has_distinct_contexts_at_every_level():
    for level in DEEP:
        for kind in deeplevels.CONTEXTS:
            contexts = deeplevels.preset(level, kind).contexts
            assert len(contexts) == len(set(contexts)) >= 11
