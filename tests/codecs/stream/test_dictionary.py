"""Dictionaries: their gain, their file, short streams, and errors for missing, wrong and damaged ones."""

import io
import itertools
import json
import random

import numpy as np
import pytest
import xxhash

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.stream import container, dictionary_file, levels
from squeeze.codecs.stream.compressor import candidates, compress_stream
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.settings import Settings
from squeeze.errors import DamagedError, DictionaryError, FormatError, LevelError, LimitError, TruncatedError
from squeeze.system.binary import varint
from tests.makers import inputs
from tests.makers.streams import long

SHORT_BYTES = 11  # around the code of a record of 128 to 16383 bytes, where that is below 128 bytes


def records(count, seed):
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        state = chance.choice(["done", "failed", "waiting for input"])
        row = {"number": number, "state": state, "worker": f"node-{chance.randrange(40):03d}"}
        row |= {"seconds": chance.randrange(10**5) / 100, "queue": chance.choice(["image", "mail", "invoice"])}
        rows.append(json.dumps(row).encode() + b" " * 60)
    return rows


SAMPLES, RECORDS = records(60, 1), records(4, 2)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("dictionary") / "jobs.sqzp"
    squeeze.train(SAMPLES, path, level=4)
    return path


@pytest.fixture(scope="module")
def known(path):
    return squeeze.Dictionary.read(path)


@pytest.fixture(scope="module")
def short(known):
    return squeeze.compress(RECORDS[0], dictionary=known)


def test_a_record_costs_less_than_half_and_next_to_no_header(known):
    for record in RECORDS[:2]:
        coded = squeeze.compress(record, dictionary=known)
        assert squeeze.decompress(coded, dictionary=known) == record
        assert len(coded) < len(squeeze.compress(record, 4)) / 2
        payload = read_index(io.BytesIO(coded))[0].blocks[0].payload_length
        assert len(coded) == payload + SHORT_BYTES


def test_training_gives_the_same_dictionary_again(known, tmp_path):
    for i, sample in enumerate(SAMPLES):
        (tmp_path / f"{i:02d}").write_bytes(sample)
    again = squeeze.train(sorted(tmp_path.iterdir()), level=4)
    assert again.identity == known.identity


def test_nothing_may_follow_the_parts(path):
    header = json.loads(path.read_bytes()[6:].split(b"}")[0] + b"}")
    body = path.read_bytes()[6 + len(json.dumps(header, separators=(",", ":"))) : -8]
    squeeze.Dictionary.from_bytes(forged(header, body))
    for more in (forged(header, body + b"a"), forged({**header, "parts": [*header["parts"], 1]}, body + b"a")):
        with pytest.raises(DictionaryError, match="not a dictionary that this version can use: train it again"):
            squeeze.Dictionary.from_bytes(more)


def test_a_file_is_what_was_learned(path, known):
    data = path.read_bytes()
    again = squeeze.Dictionary.from_bytes(data)
    assert again.identity == known.identity
    assert np.array_equal(again.learned.weights, known.learned.weights)
    assert dictionary_file.to_bytes(4, again.content, again.text, again.learned) == data


@pytest.mark.parametrize("name", inputs.EDGE_CASES)
def test_any_content_comes_back_under_a_dictionary(name, known):
    data = inputs.EDGE_CASES[name][:5_000]
    coded = squeeze.compress(data, dictionary=known)
    assert squeeze.decompress(coded, dictionary=known) == data
    assert len(coded) <= len(data) + 64


@pytest.mark.parametrize("data", [inputs.machine_code(600), inputs.records(300), bytes(range(256)) * 4, b"\0" * 500])
def test_what_the_dictionary_does_not_know_is_no_larger_with_it(data, known):
    coded = squeeze.compress(data, dictionary=known)
    assert len(coded) <= len(squeeze.compress(data, 4))
    assert squeeze.decompress(coded, dictionary=known) == data


def test_a_short_record_of_a_table_is_not_tried_without_its_dictionary(tmp_path, monkeypatch):
    squeeze.train([inputs.records(150)] * 2, tmp_path / "table.sqzp", level=4)
    table = squeeze.Dictionary.read(tmp_path / "table.sqzp")
    assert table.content.kind == "table"
    record = inputs.records(40)
    assert [way.dictionary for way in candidates(record, Settings(levels.level(4), dictionary=table))] == [table]
    assert squeeze.decompress(squeeze.compress(record, dictionary=table), dictionary=table) == record


def test_what_goes_without_the_dictionary_needs_none(known):
    data = inputs.machine_code(600)
    coded = squeeze.compress(data, dictionary=known)
    assert "dictionary" not in read_index(io.BytesIO(coded))[0].header
    assert squeeze.decompress(coded) == data


def test_long_files_have_blocks_and_an_index(known):
    data = b"\n".join(records(430, 3))
    assert len(data) > container.MAX_SHORT
    coded = squeeze.compress(data, dictionary=known)
    (stream,) = read_index(io.BytesIO(coded))
    assert (stream.short, stream.header["dictionary"]) == (False, known.identity[:32])
    assert squeeze.decompress(coded, dictionary=known) == data
    with pytest.raises(
        DictionaryError, match=f"the file needs the dictionary {known.identity[:8]}: name it with `dictionary`"
    ):
        squeeze.decompress(coded)


@pytest.mark.parametrize("block_size", [1_000, 1 << 20])
def test_blocks_and_threads_change_nothing(known, block_size):
    data = b"\n".join(records(60, 3))
    written = []
    for threads in (1, 2, 4):
        sink = io.BytesIO()
        compress_stream(io.BytesIO(data), sink, dictionary=known, threads=threads, block_size=block_size)
        written.append(sink.getvalue())
        assert squeeze.decompress(written[0], dictionary=known, threads=threads) == data
    assert written[0] == written[1] == written[2]


def test_executables_and_tables_have_dictionaries_too():
    for data in (inputs.machine_code(600), inputs.records(300)):
        half = len(data) // 48 * 24
        known = squeeze.train([data[:half]], level=4)
        coded = squeeze.compress(data[half:], dictionary=known)
        assert squeeze.decompress(coded, dictionary=known) == data[half:]
        assert len(coded) < len(squeeze.compress(data[half:], 4))


@pytest.mark.parametrize("level", [5, pytest.param(6, marks=pytest.mark.slow)])
def test_dictionaries_work_at_levels_with_a_network(level):
    known = squeeze.train(SAMPLES[:20], level=level)
    coded = squeeze.compress(RECORDS[0], dictionary=known)
    assert len(coded) < len(squeeze.compress(RECORDS[0], level))
    assert squeeze.decompress(coded, dictionary=known) == RECORDS[0]


@pytest.mark.parametrize("level", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_a_dictionary_without_text_makes_files_smaller(level):
    """Only mixers and maps learn: such are the dictionaries of the package."""
    known = squeeze.train(SAMPLES[:20], level=level, text_size=0)
    assert known.text.size == 0
    coded = squeeze.compress(RECORDS[0], dictionary=known)
    assert len(coded) < len(squeeze.compress(RECORDS[0], level))
    assert squeeze.decompress(coded, dictionary=known) == RECORDS[0]


def test_streams_of_all_forms_may_follow_each_other(known, short):
    text = inputs.words(400)
    raws = {short: RECORDS[0], (by_level := squeeze.compress(text, 1)): text, (with_index := long(text, 1)): text}
    for count in (2, 3):
        for parts in itertools.product(raws, repeat=count):
            data, raw = b"".join(parts), b"".join(raws[part] for part in parts)
            assert squeeze.decompress(data, dictionary=known) == raw
            streams = read_index(io.BytesIO(data))
            assert [stream.short for stream in streams] == [part is not with_index for part in parts]
            contents = {short: "dictionary", by_level: "text", with_index: "text"}
            assert [stream.blocks[0].content for stream in streams] == [contents[part] for part in parts]
            with squeeze.open(io.BytesIO(data), dictionary=known) as file:
                file.seek(100)
                assert file.read(120) == raw[100:220]


def test_stored_records_are_read_in_part(known):
    data = inputs.random_bytes(500)
    coded = squeeze.compress(data, dictionary=known)
    assert len(coded) == len(data) + 10  # a form, lengths of 2 and 1 bytes, and a checksum: without the dictionary
    with squeeze.open(io.BytesIO(coded), dictionary=known) as file:
        file.seek(300)
        assert file.read(10) == data[300:310]


def test_no_flipped_bit_of_a_short_stream_gives_wrong_data(known, short):
    for position in range(len(short)):
        flipped = bytearray(short)
        flipped[position] ^= 1 << position % 8
        try:
            assert squeeze.decompress(bytes(flipped), dictionary=known) == RECORDS[0]
        except (FormatError, DictionaryError):
            continue


def test_every_truncation_of_a_short_stream_is_named(known, short):
    for length in range(1, len(short)):
        with pytest.raises(TruncatedError):
            squeeze.decompress(short[:length], dictionary=known)
        with pytest.raises(TruncatedError):
            read_index(io.BytesIO(short[:length]))


def test_lengths_that_are_impossible_take_no_memory(known):
    start = container.short_header_bytes(4, False, known.identity, None)
    for lengths in (b"\xff\xff\x7f\x05", b"\x05\x06"):
        with pytest.raises(DamagedError, match="a block's lengths are impossible"):
            squeeze.decompress(start + lengths + bytes(10), dictionary=known)


def test_what_a_dictionary_takes_of_memory_is_limited(path, known, short):
    limits = squeeze.Limits(memory=200 << 20)
    with pytest.raises(LimitError, match=r"^the dictionary needs [\d,]+ bytes of memory, and the limit is"):
        squeeze.Dictionary.read(path, limits=limits)
    with pytest.raises(LimitError, match=r"^the dictionary needs"):
        squeeze.decompress(short, dictionary=path, limits=limits)
    with pytest.raises(LimitError, match=r"^a block of [\d,]+ bytes at level 4 needs"):
        squeeze.decompress(short, dictionary=known, limits=squeeze.Limits(memory=100 << 20))


def test_what_has_no_end_is_no_dictionary():
    with pytest.raises(DictionaryError, match="the file is too large to be one"):
        squeeze.Dictionary.read("/dev/zero")


def test_short_streams_are_salvaged(known, short):
    hurt = bytearray(short)
    hurt[8] ^= 1  # of the checksum
    sink = io.BytesIO()
    totals = decompress_stream(io.BytesIO(bytes(hurt) + short), sink, dictionary=known, salvage=True)
    size = len(RECORDS[0])
    assert sink.getvalue() == bytes(size) + RECORDS[0]
    assert totals.damage == (f"bytes 0 to {size} are lost: their block is damaged",)


def test_a_missing_or_wrong_dictionary_is_named(known, short):
    other = squeeze.train(records(10, 9), level=4)
    with pytest.raises(DictionaryError) as caught:
        squeeze.decompress(short)
    needed, found = (container.record_identity(one.identity) for one in (known, other))
    assert str(caught.value) == f"the file needs the dictionary {needed}: name it with `dictionary`"
    for read in (squeeze.decompress, lambda coded, **given: squeeze.open(io.BytesIO(coded), **given)):
        with pytest.raises(DictionaryError) as caught:
            read(short, dictionary=other)
        assert str(caught.value) == f"the file needs the dictionary {needed}, and this is {found}"
    with pytest.raises(DictionaryError):
        decompress_stream(io.BytesIO(short), None, salvage=True)


def test_no_changed_byte_around_a_record_gives_wrong_data(known, short):
    named, checksum = bytes.fromhex(known.identity), xxhash.xxh3_64_intdigest(RECORDS[0]).to_bytes(8, "little")
    lengths = varint(len(RECORDS[0])) + varint(len(short) - SHORT_BYTES)
    marked = bytes([named[0] | 128, named[1]])
    assert short[:SHORT_BYTES] == b"\xf5\xac" + marked + lengths + checksum[:4]


def test_a_wrong_dictionary_with_the_right_beginning_gives_no_wrong_bytes(short):
    """Fifteen bits of an identity name a dictionary among few. What another makes of a record has another checksum."""
    other = squeeze.train(records(40, 9), level=4)
    named = container.short_header_bytes(4, False, other.identity, None) + short[4:]
    for read in (squeeze.decompress, lambda coded, **given: squeeze.open(io.BytesIO(coded), **given).read()):
        with pytest.raises(DamagedError, match="a block's checksum differs: the file is damaged"):
            read(named, dictionary=other)


def test_a_pipe_may_give_single_bytes(known, short):
    class Pipe(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 1))

    sink = io.BytesIO()
    decompress_stream(Pipe(short * 2), sink, dictionary=known)
    assert sink.getvalue() == RECORDS[0] * 2


def test_refuses_a_dictionary_of_another_level(known):
    with pytest.raises(
        LevelError, match="the dictionary was trained for level 4: leave the level out, or train another"
    ):
        squeeze.compress(b"abc", 5, dictionary=known)


@pytest.mark.parametrize("wanted", [7, "7f", None, ["a"]])
def test_refuses_headers_that_name_no_possible_dictionary(wanted):
    header = container.header_bytes({"level": 4, "numerics": 1, "dictionary": wanted})
    with pytest.raises(FormatError, match="the file uses a level or parameter that this version lacks"):
        squeeze.decompress(header + b"\x00")


def test_damaged_dictionaries_are_refused(path):
    data = path.read_bytes()
    generator = np.random.default_rng(1)
    for position in [*range(60), *generator.integers(0, len(data), 60)]:
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(DictionaryError):
            squeeze.Dictionary.from_bytes(bytes(flipped))
    for length in range(0, len(data), len(data) // 50):
        with pytest.raises(DictionaryError):
            squeeze.Dictionary.from_bytes(data[:length])


def forged(header, body=b""):
    import xxhash

    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = dictionary_file.MAGIC + bytes([dictionary_file.VERSION]) + varint(len(text)) + text + body
    return data + xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")


HEADER = {
    **{"level": 4, "numerics": 1, "content": "text", "record": 0, "text": 0, "rows": 1, "apm_rows": 0},
    **{"changes_network": 0, "parts": []},
}


@pytest.mark.parametrize(
    "header",
    [
        *(b"[1]", b"{", b"\xff"),
        *({}, {**HEADER, "more": 1}, {**HEADER, "level": 3}, {**HEADER, "numerics": 2}, {**HEADER, "text": 1 << 30}),
        *(
            {**HEADER, "changes_network": 1},
            {**HEADER, "content": "table"},
            {**HEADER, "content": ["text"]},
            {**HEADER, "record": 9},
            HEADER,
        ),
        *({**HEADER, "parts": [5]}, {**HEADER, "parts": ["a"]}, {**HEADER, "parts": 3}, {**HEADER, "rows": 1 << 39}),
        {**HEADER, "parts": [0] * 14, "rows": 1 << 30},
    ],
)
def test_dictionaries_that_make_no_sense_are_refused(header):
    with pytest.raises(DictionaryError, match="not a dictionary that this version can use: train it again"):
        squeeze.Dictionary.from_bytes(forged(header))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a dictionary: it does not begin with the mark of .sqzp files"),
        (b"\xf5\xac\x01" + bytes(30), "not a dictionary: it does not begin with the mark of .sqzp files"),
        (b"\xf5SP\x01", "the dictionary is damaged: its length is impossible"),
        (b"\xf5SP\x09" + bytes(30), "the dictionary's version 9 is unknown: use a newer squeeze, or train it again"),
        (b"\xf5SP\x01" + bytes(30), "the dictionary is damaged: its checksum differs"),
    ],
)
def test_refuses_files_that_are_not_dictionaries(data, message, tmp_path):
    (tmp_path / "a.sqzp").write_bytes(data)
    with pytest.raises(DictionaryError) as caught:
        squeeze.compress(b"abc", dictionary=tmp_path / "a.sqzp")
    assert str(caught.value) == f"{tmp_path}/a.sqzp: {message}"


def test_refuses_samples_that_teach_nothing():
    with pytest.raises(DictionaryError, match="a dictionary needs at least 1024 bytes of samples"):
        squeeze.train([b"abc"], level=4)
    with pytest.raises(DictionaryError, match="the samples are compressed or encrypted already"):
        squeeze.train([inputs.random_bytes(20_000)], level=4)
    with pytest.raises(LevelError, match="a dictionary needs one of the levels 4 to 6"):
        squeeze.train(SAMPLES, level=3)
    with pytest.raises(DictionaryError, match="a dictionary's text must have from 0 to 1048576 bytes"):
        squeeze.train(SAMPLES, level=4, text_size=1 << 21)
    with pytest.raises(DictionaryError, match="a dictionary needs at least 1 byte to learn from"):
        squeeze.train(SAMPLES, level=4, learn_size=0)


def test_every_deep_level_takes_dictionaries():
    deep = {n for n, row in levels.LEVELS.items() if isinstance(row.models("text"), DeepPreset) and not row.text}
    assert {n for n, row in levels.LEVELS.items() if row.takes_dictionary} == deep
    for level in deep:
        assert dictionary_file.preset_of(level, Content("text"))
