"""Check the payload of every medium: damage is an error or other bytes, and progress counts all bytes."""

from contextlib import suppress
from functools import cache

import numpy as np
import pytest

from squeeze.codecs.array import coder as array
from squeeze.codecs.array.layout import FLOAT, Layout as Array
from squeeze.codecs.image import coder as image
from squeeze.codecs.image.layout import Layout as Image
from squeeze.codecs.sound import coder as sound
from squeeze.codecs.sound.layout import Layout as Sound
from squeeze.errors import FormatError
from tests.makers import arrays, images, sounds

PIXELS, FRAMES = Image(30, 8, 3, filtered=1, prefix=20), Sound(2, 2, prefix=20)
MEDIA = {
    "array": (array, Array(4, 3, FLOAT, prefix=20), bytes(20) + arrays.points(90)),
    "image": (image, PIXELS, images.rows_of(PIXELS, 30)),
    "sound": (sound, FRAMES, sounds.bytes_of(FRAMES, 300)),
}
PLAIN = {form: (image, form, images.rows_of(form, 30)) for form in (Image(40, 8, 1), Image(7, 8, 1, padding=2))}


@cache
def payload_of(name: str) -> bytes:
    """Return the payload of a medium; not made at import, since that compiles."""
    coder, form, data = MEDIA[name]
    payload: bytes | None = coder.encode(np.frombuffer(data, np.uint8), form, True)
    assert payload
    return payload


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize("name", MEDIA)
def test_damage_in_the_layout_is_an_error_or_other_bytes(name, place):
    coder, _, data = MEDIA[name]
    for bit in range(8):
        damaged = bytearray(payload_of(name))
        damaged[place] ^= 1 << bit
        with suppress(FormatError):
            assert coder.decode(bytes(damaged), len(data)).size == len(data)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 9, 60])
@pytest.mark.parametrize("name", MEDIA)
def test_a_payload_that_was_cut_off_is_an_error(name, size):
    coder, _, data = MEDIA[name]
    with pytest.raises(FormatError):
        coder.decode(payload_of(name)[:size], len(data))


@pytest.mark.parametrize("coder, form, data", [*MEDIA.values(), *PLAIN.values()], ids=[*MEDIA, *map(str, PLAIN)])
def test_progress_is_that_of_all_bytes(coder, form, data):
    data, counts = data[:-3], list[int]()
    payload = coder.encode(np.frombuffer(data, np.uint8), form, False, counts.append)
    assert payload and sum(counts) == len(data)
    counts.clear()
    coder.decode(payload, len(data), counts.append)
    assert sum(counts) == len(data)
