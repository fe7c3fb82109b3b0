"""The presets of levels 4 to 6."""

from squeeze.codecs.deep import presets as deeplevels


def test_every_kind_of_content_has_distinct_contexts_at_every_level():
    for level in (4, 5, 6):
        for kind in deeplevels.CONTEXTS:
            contexts = deeplevels.preset(level, kind).contexts
            assert len(contexts) == len(set(contexts)) >= 11
