"""A sample of a corpus, which a dictionary is learned from before the shards are written."""

import random
from collections.abc import Iterable

from squeeze.codecs.shards.reading import Source, found
from squeeze.codecs.shards.tar import Entry, Tar

__all__ = ["sample"]

_FILES = 1000
_MOST = 1 << 14  # bytes of one


def sample(sources: Iterable[Source]) -> list[bytes]:
    """Starts of some files as they stand in a tar, each as likely as any other; the same of the same sources. What
    cannot be read is left out."""
    chance, chosen = random.Random(0), list[tuple[int, Source]]()
    for number, source in enumerate(sources):  # Vitter 1985, algorithm R
        place = number if number < _FILES else chance.randrange(number + 1)
        if place < len(chosen):
            chosen[place] = number, source
        elif place < _FILES:
            chosen.append((number, source))
    read = found((source for _, source in sorted(chosen, key=lambda one: one[0])), lambda source, error: None)
    return [_start(Entry(one.source.name, one.size, one.pieces)) for one in read]


def _start(entry: Entry) -> bytes:
    return Tar([entry]).read(min(entry.size, _MOST) + 512)
