"""How the threads that a caller allows are shared out."""

from dataclasses import dataclass

from squeeze.codecs.stream.levels import Level
from squeeze.system import cores


@dataclass(frozen=True)
class Threads:
    """Threads for blocks beside each other, and for each of them."""

    blocks: int  # that are coded at a time
    per_block: int  # on a bytewise block
    per_text: int  # on a block that goes through a language model


def allot(level: Level | None, threads: int | None) -> Threads:
    """`threads` of a level, of which None is one, and one a core for a language model.

    A language model uses all threads for one block; where training overlaps, a block uses two.
    """
    if level and level.needs_language_model:
        return Threads(1, 1, threads or cores.available())
    per_block = min(threads or 1, level.threads_per_block) if level else 1
    most_per_block = level.threads_per_block if level else 1
    return Threads(max((threads or 1) // most_per_block, 1), per_block, 1)
