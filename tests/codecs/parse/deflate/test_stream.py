"""Deflate streams come back byte for byte, and those of zlib cost a few bytes."""

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.codecs.parse.deflate import estimating
from squeeze.codecs.parse.deflate.encoders import CHEAPEST_LEVELS
from squeeze.codecs.parse.deflate.stream import Closings, open_stream
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from tests.makers import cheapest, inputs
from tests.makers.cases import every

TEXT = inputs.words(30_000) + inputs.random_bytes(3_000) + bytes(5_000) + inputs.words(20_000)
MOST = 1 << 20
ISAL_3 = (  # what isal_zlib.compressobj(3, 8, -15) writes
    "7VbRbtswDPSn6NdorIH0MBlIOAT9+4F3R1p2g33BAqSVKPJ4PFJqrT2OZ3vbqw1vx6ONV5uHN/PmR9u/m7Vjxs7ae3gP+5jt8Tx+h+f+x+Hdx6"
    "tgvJ+x8xdMw5v3r9rmNz3t1frXk/hEdvjifEwcxuoFFHKMVe4m8h9zRbh6kGmx/XomO9VMBIT3LGWwWvJLIEghiTLRB2g/c1sR6yS5f4c5YAnO"
    "n4SJmCWAdfNYm7NdpaBhOcpF9CpyT26VX5XbmYaLVYN3wg82YKnK1EccM3tspSWz9wSFS3BO3oiSbJ2MUXLxnYu2nZmvuFnBC2zieyFxpkshgZ"
    "Z5E8UKnQikcCcmzE/jG2txQJ+RSoESDSYWhmUKOzjgwz+CkikRbCEMnOILQNrkPq7hPEuxmGopD/HCXa70XNSPNVDhKniVTBIfFE4oJoQNfsa4"
    "MqYjNlWEoQWi5ZiHJMyjpF9T4am/Oi7FgP1GUjAATXAp44KmNJ6FTSpWUdlAK6Oi4P0DcteTwNPHbRwtK4Uu2dC7LtLfAOpJLIHstDkFSIogBh"
    "h0bGR3FhTIdcx0+0IlPWfCkDG2oBi1LTdAt3ymg2ClyprJsiK2ccUvVEKVBe6CAnt6uXgXorTpnAMFKJMXYkiFk86XD0YYQBPg7FdnLbouCHyU"
    "zrveTwSJTTFZAcUq1zc/gs1LS20V9NZ1P9If7H4EXBWteBwytp9xzq5n2qx9Vqpdz8RqK2wagY9iKDCTuNDvv5kt4vq1kQeKhXFcepPkZpU48x"
    "SeyC8gnar/KfIigvoiD1deaVK5ZD87/tYTnJ7svtw0LPl1ARgJ5/KdEF5bkFsE5TC48sJ64221CgUKg8KLx2SjrD22bdu2bdu2bdu2/59/fqQ5"
    "G8SmSkjdguoN5DeIzu6csvf8JzEbo1j1+8M0vBdPXc1r35cZjkNDm70GzzVsBwf/fi1uHmRabHkJjHN6FALCe5YyWC35JRCkkESZ6AO0n7mtiH"
    "WS5B9qx8vseJ8dKXZdoSWAdfNYm7NdpWC9XnIRvYoMYHCr/KpcLY0w5ls1KPgQ51pVhNcxs8dWWlKcAsXohKDxDTd2lfWGFxw4Y6w0uKa24UDB"
    "VJUMQWG8/gI="
)


def deflated(data: bytes, level: int = 6, window: int = 15, memory: int = 8, strategy: int = 0) -> np.ndarray:
    coder = zlib.compressobj(level, zlib.DEFLATED, -window, memory, strategy)
    return np.frombuffer(coder.compress(data) + coder.flush(), np.uint8)


def bits_of(*fields: tuple[int, int]) -> np.ndarray:
    """Return (value, width) fields as the bytes of a stream, the low bits first."""
    total, place = 0, 0
    for value, width in fields:
        total |= value << place
        place += width
    return np.frombuffer(total.to_bytes((place + 7) // 8, "little"), np.uint8)


def check(stream: np.ndarray, content: bytes, window: int = 15) -> int:
    """Open a stream with other bytes behind it, close it again, and return the bytes that this needs."""
    found = open_stream(np.frombuffer(stream.tobytes() + b"behind", np.uint8), Room(MOST), window)
    assert found and found.content.tobytes() == content and found.size == stream.size
    closing = Closings().encode(found)
    assert Closings().close(found.content, closing).tobytes() == stream.tobytes()
    return len(closing)


@pytest.mark.parametrize("level", range(10))
def test_a_stream_of_zlib_costs_a_few_bytes(level):
    assert check(deflated(TEXT, level), TEXT) <= 40


@pytest.mark.parametrize(
    ("window", "memory", "strategy"),
    [(9, 8, 0), (12, 9, 0), (15, 9, 0), (15, 8, 1), (15, 8, 2), (15, 8, 4), (15, 1, 0)],
)
def test_other_settings_of_zlib_cost_little(window, memory, strategy):
    stream = deflated(TEXT, 6, window, memory, strategy)
    assert check(stream, TEXT, window) <= 40 + stream.size // 50


@pytest.mark.parametrize(("window", "memory", "strategy"), [(9, 8, 0), (11, 3, 0), (14, 8, 0), (15, 1, 0), (15, 8, 3)])
def test_a_stream_of_zlib_costs_a_few_bytes_without_a_header(window, memory, strategy):
    assert check(deflated(TEXT, 6, window, memory, strategy), TEXT) <= 40


def test_later_streams_cost_less_than_the_first():
    parts = [TEXT[at : at + 1_000] for at in range(0, 30_000, 1_000)]
    found = [open_stream(deflated(part), Room(MOST)) for part in parts]
    coder, restorer = Closings(), Closings()
    closings = [coder.encode(one) for one in found]
    assert sum(map(len, closings[1:])) <= 3 * len(parts) and len(closings[0]) > 5
    for part, one, closing in zip(parts, found, closings, strict=True):
        assert restorer.close(one.content, closing).tobytes() == deflated(part).tobytes()


@pytest.mark.parametrize("content", [b"", b"a", b"ab", b"abc" * 200, bytes(300), bytes(range(256))])
@pytest.mark.parametrize("strategy", [0, 4])
def test_short_streams(content, strategy):
    assert check(deflated(content, 9, 15, 8, strategy), content) <= 30


@pytest.mark.parametrize(("blocks", "odd", "share"), every(2, [(1, 0.0, 0.07), (3, 0.0, 0.08), (2, 0.1, 0.125)]))
def test_a_stream_of_the_cheapest_tokens_costs_little(blocks, odd, share):
    stream = np.frombuffer(cheapest.deflated(TEXT[:8_000], blocks, odd), np.uint8)
    found = open_stream(stream, Room(MOST))
    assert found and found.encoder.level in CHEAPEST_LEVELS
    assert estimating.estimate(found.stream, 15, found.encoder) == found.encoder
    assert check(stream, TEXT[:8_000]) <= share * stream.size


def test_a_stream_of_isal_costs_little():
    """Its lazy matching of single candidates by a hash of products is predicted, and its codes are not."""
    stream = np.frombuffer(base64.b64decode(ISAL_3), np.uint8)
    content = inputs.words(2_500) + bytes(300) + inputs.words(700)
    assert zlib.decompress(stream.tobytes(), -15) == content
    assert check(stream, content) <= 90


def test_flushed_parts_and_empty_blocks():
    coder = zlib.compressobj(6, zlib.DEFLATED, -15)
    parts = [
        coder.compress(TEXT[at : at + 7_000]) + coder.flush(zlib.Z_SYNC_FLUSH) for at in range(0, len(TEXT), 7_000)
    ]
    stream = np.frombuffer(b"".join(parts) + coder.flush(), np.uint8)
    assert check(stream, TEXT) <= stream.size // 50


def test_choices_that_zlib_never_makes():
    literals = bits_of((1, 1), (1, 2), *[(0x0C, 8)] * 20, (0, 7))  # 20 times the literal 0, and no match
    assert check(literals, bytes(20)) <= 40
    padded = bits_of((1, 1), (0, 2), (21, 5), (3, 16), (3 ^ 0xFFFF, 16), (0x636261, 24))
    assert check(padded, b"abc") <= 40
    rest = bits_of((1, 1), (1, 2), (0x0C, 8), (0, 7), (45, 6))
    assert check(rest, bytes(1)) <= 40


@pytest.mark.parametrize("level", [1, 6])
def test_what_is_cut_off_or_no_stream_stays_closed(level):
    stream = deflated(TEXT, level)
    assert open_stream(stream[:-1], Room(MOST)) is None
    assert open_stream(stream, Room(len(TEXT) - 1)) is None
    assert open_stream(np.zeros(0, np.uint8), Room(MOST)) is None
    assert open_stream(np.frombuffer(inputs.random_bytes(5_000), np.uint8), Room(MOST)) is None


@given(st.binary(max_size=60), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_any_content_comes_back(content, level):
    stream = deflated(content * 3, level)
    assert check(stream, content * 3) <= 32 + stream.size // 8


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_closings_are_refused_or_give_other_bytes(data):
    found = open_stream(deflated(TEXT[:4_000]), Room(MOST))
    assert found
    closing = bytearray(Closings().encode(found))
    closing[data.draw(st.integers(0, len(closing) - 1))] ^= data.draw(st.integers(1, 255))
    content = found.content[: data.draw(st.integers(0, found.content.size))]
    try:
        assert Closings().close(content, bytes(closing)).dtype == np.uint8
    except DamagedError as error:
        assert "the file is damaged" in str(error)
