"""How the threads that a caller allows are shared out."""

from dataclasses import dataclass

from squeeze.codecs.stream.levels import Level
from squeeze.system import cores


@dataclass(frozen=True)
class Threads:
    """Threads for blocks beside each other, and for one that goes through a language model."""

    blocks: int  # that are coded at a time
    per_text: int  # on a block that goes through a language model


def allot(level: Level | None, threads: int | None, texts: int = 1) -> Threads:
    """`threads` of a level, of which None is one, and one a core for a language model.

    A language model uses all threads for one block, or shares them out to `texts` at once.
    """
    if level and level.needs_language_model:
        return Threads(texts, max(1, (threads or cores.available()) // texts))
    return Threads(threads or 1, 1)
