"""Memory of blocks is estimated before it is allocated, and stays within the limits."""

import io
import threading
import tracemalloc

import numpy as np
import pytest
import xxhash

import squeeze
from squeeze.codecs.bytewise import state as bytewise
from squeeze.codecs.bytewise.presets import Preset
from squeeze.codecs.deep import arrays as deep
from squeeze.codecs.stream import compressor, container, decompressor, levels, memory, opened
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.estimates import memory_to_restore
from squeeze.codecs.stream.footer import Index, index_bytes
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.resources import Resources
from squeeze.errors import LimitError
from squeeze.system.limits import Limits
from tests.makers import inputs, wrapped
from tests.makers.streams import long

DATA = inputs.words(4_000)


def coded(level: int = 1, block_size: int = 500) -> bytes:
    sink = io.BytesIO()
    compress_stream(io.BytesIO(DATA), sink, level=level, block_size=block_size, verify=False)
    return sink.getvalue()


def claiming(level: int, kind: int = container.BYTEWISE, blocks: int = 1) -> bytes:
    """Return a short file whose blocks claim the largest length."""
    payload = b"\x01" + bytes(150)
    block = container.block_header_bytes(kind, container.MAX_BLOCK, len(payload), 0) + payload
    return container.header_bytes({"level": level, "numerics": container.NUMERICS}) + blocks * block


@pytest.mark.parametrize(
    ("level", "size", "kind"),  # of the kind with most contexts
    [(1, 0, "text"), (1, 1 << 24, "text"), (3, 1 << 28, "text"), (4, 1_000, "text"), (6, 1 << 20, "other")],
)
def test_the_estimate_of_models_is_close(level, size, kind):
    data, preset = np.zeros(size, np.uint8), levels.LEVELS[level].models(kind)
    tracemalloc.start()
    try:
        if isinstance(preset, Preset):
            model = bytewise.build_model(data, preset)
        else:
            model = deep.build_model(data, preset)
        taken = tracemalloc.get_traced_memory()[1]
        assert model.data is data
    finally:
        tracemalloc.stop()
    assert taken <= memory.models_memory(level, size) <= taken + (50 << 20)


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5, 6])
def test_a_claim_above_the_limit_is_refused_before_it_costs_anything(level, monkeypatch):
    monkeypatch.delattr(decompressor, "decode_block")
    monkeypatch.delattr("squeeze.codecs.stream.salvage.decode_block")
    said = rf"^a block of 268,435,456 bytes at level {level} needs [\d,]+ bytes of memory, and the limit is 104,857,600"
    limits = Limits(memory=100 << 20)
    with pytest.raises(LimitError, match=said):
        squeeze.decompress(claiming(level, blocks=200), threads=4, limits=limits)
    with pytest.raises(LimitError, match=said):
        decompress_stream(io.BytesIO(claiming(level)), None, salvage=True, limits=limits)


def test_an_open_file_keeps_the_limit_too():
    with (
        squeeze.open(io.BytesIO(coded()), limits=Limits(memory=1 << 20)) as file,
        pytest.raises(LimitError, match=r"^a block of 500 bytes at level 1 needs"),
    ):
        file.read(1)


def at_once(monkeypatch, module, name):
    """Count how many calls of a module's function run at the same time, whenever one starts."""
    together, found, lock = 0, [], threading.Lock()
    function = getattr(module, name)

    def counting(*arguments):
        nonlocal together
        with lock:
            together += 1
            found.append(together)
        try:
            return function(*arguments)
        finally:
            with lock:
                together -= 1

    monkeypatch.setattr(module, name, counting)
    return found


def test_fewer_blocks_at_once_where_memory_allows_no_more(monkeypatch):
    most = at_once(monkeypatch, decompressor, "decode_block")
    one = memory.models_memory(1, 500)
    for limit in (one + 10_000, 2 * one + 20_000):
        sink = io.BytesIO()
        decompress_stream(io.BytesIO(coded()), sink, threads=4, limits=Limits(memory=limit))
        assert sink.getvalue() == DATA
        assert max(most) <= limit // one


def test_fewer_blocks_are_coded_at_once_where_memory_is_short(monkeypatch):
    data = b"some text " * 5000
    expected = squeeze.compress(data, 1, block_size=5000)
    most = at_once(monkeypatch, compressor, "encode_block")
    monkeypatch.setattr(compressor, "Limits", lambda: Limits(memory=1))
    assert squeeze.compress(data, 1, threads=4, block_size=5000) == expected
    assert max(most) == 1


def test_output_is_counted_as_it_comes():
    file, through_pipe = coded(), type("Pipe", (io.BytesIO,), {"seekable": lambda self: False})
    for length, source in ((len(DATA), io.BytesIO), (len(DATA) - 1, io.BytesIO), (len(DATA) - 1, through_pipe)):
        limits = Limits(output=length)
        if length == len(DATA):
            assert decompress_stream(source(file), None, limits=limits).raw == length
            continue
        with pytest.raises(LimitError, match=r"^4,000 bytes or more would be written, and the limit is 3,999: raise"):
            decompress_stream(source(file), None, limits=limits)
    stored = squeeze.compress(inputs.random_bytes(9_000), 1)
    with pytest.raises(LimitError, match="9,000 bytes"):
        squeeze.decompress(stored, limits=Limits(output=8_999))


def test_a_file_that_tells_of_too_much_output_is_refused_before_a_block_is_decoded(monkeypatch):
    file = coded()
    monkeypatch.delattr(decompressor, "decode_block")
    with pytest.raises(LimitError, match=r"^4,000 bytes or more would be written"):
        squeeze.decompress(file, threads=4, limits=Limits(output=3_999))


def test_what_is_restored_in_memory_is_limited_by_memory():
    stored = squeeze.compress(inputs.random_bytes(9_000), 1)
    with pytest.raises(LimitError, match=r"^what is restored in memory needs 9,000 bytes"):
        squeeze.decompress(stored, limits=Limits(memory=8_999))


def test_an_index_of_too_many_blocks_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "_OFTEN", 4)
    limits = Limits(memory=5_000)
    said = r"^an index of 12 blocks or more needs 6,144 bytes of memory"
    for stream in (squeeze.compress(b"", 1), long(b"", 1)):
        many = io.BytesIO(stream * 12)
        with pytest.raises(LimitError, match=said):
            read_index(many, limits)
        with pytest.raises(LimitError, match=said):
            decompress_stream(many, None, salvage=True, limits=limits)
    small = container.block_header_bytes(container.STORED, 1, 1, xxhash.xxh3_64_intdigest(b"a")) + b"a"
    with pytest.raises(LimitError, match=said):
        squeeze.decompress(container.header_bytes({}) + 20 * small, limits=limits)


def test_an_index_that_claims_more_than_the_file_holds_is_not_read_to_its_end():
    header = container.header_bytes({})
    lying = header + index_bytes(Index(len(header), [(1, 1 << 20)] * 100_000, 0))
    tracemalloc.start()
    try:
        with pytest.raises(squeeze.DamagedError, match="does not agree with the file's length"):
            read_index(io.BytesIO(lying))
        assert tracemalloc.get_traced_memory()[1] < 3 * len(lying)
    finally:
        tracemalloc.stop()


def test_an_index_with_a_block_of_no_bytes_is_refused():
    header = container.header_bytes({})
    lying = header + bytes(13) + index_bytes(Index(len(header), [(0, 13)], 0))
    with pytest.raises(squeeze.DamagedError, match="a block's lengths are impossible"):
        read_index(io.BytesIO(lying))


def test_by_default_what_is_free_is_looked_up_once():
    assert Resources().limits == Limits()


def test_what_the_first_block_opens_counts():
    def needed(data: bytes) -> int:
        level, memory = memory_to_restore(io.BytesIO(squeeze.compress(data, 1, block_size=len(data))), Resources())
        assert level == 1
        return memory

    text = inputs.words(100_000)
    assert needed(wrapped.gzip_file(text)) - needed(text) >= opened.MEMORY * len(text)
