"""A .sqz file with sounds, by both of their models."""

from tests.fuzz.formats.sqz import Sqz
from tests.makers import sounds


class Sound(Sqz):
    """Files of one sound, and of several with other bytes between them."""

    def _inputs(self) -> list[tuple[bytes, int]]:
        first, second = sounds.wav(sounds.samples(700, 2, 16), 2), sounds.aiff(sounds.samples(500, 1, 24), 3)
        joined = first + b"between" * 20 + second
        return [(first, 1 << 20), (joined, 1 << 20), (joined, 2_000)]


FORMAT = Sound
