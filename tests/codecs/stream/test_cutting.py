"""Streams are cut into parts whose bytes without copies have one kind of content, or wrappers that are new."""

import io

import numpy as np

from squeeze.codecs.parse import tree
from squeeze.codecs.parse.tree import Node
from squeeze.codecs.stream import cutting, matches
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.stream.settings import resolve_settings
from tests.makers import inputs, wrapped

SIZE, MIB = 1 << 18, 1 << 20
SETTINGS, _ = resolve_settings(1, 1, SIZE, None, LanguageOptions(), True, 4 * MIB)
NOISE = inputs.random_bytes(20_000)


def parts_of(raw, size=SIZE, settings=SETTINGS):
    file = io.BytesIO(raw)
    return list(cutting.parts(file.read(size), file.read, size, settings, len(raw)))


def check(parts, raw):
    assert b"".join(part.data.tobytes() for part in parts) == raw
    begin = 0
    for part in parts:
        rest = part.copies.rest(part.data) if part.copies else part.data
        assert np.array_equal(rest, part.rest)
        if part.copies:
            for place, length, source in zip(part.copies.places, part.copies.lengths, part.copies.sources, strict=True):
                assert raw[begin + place :][:length] == raw[begin + source :][:length]
        begin += part.data.size


def test_parts_end_where_the_content_changes():
    text, table = inputs.words(400_000), inputs.records(30_000)
    raw = text + table + NOISE + text[1_000:] + table[600:] + text[:200_000]
    parts = parts_of(raw)
    check(parts, raw)
    assert {part.content.kind for part in parts} >= {"text", "array"}
    assert sum(part.rest.size for part in parts) < len(text) + len(table) + len(NOISE) + 20_000


def test_a_wrapper_is_copied_if_most_of_it_is_known_and_stays_open_otherwise():
    first = wrapped.zip_archive({"known.txt": inputs.words(9_000)})
    half = wrapped.gzip_file(inputs.words(4_000) + inputs.words(9_000, seed=2))
    raw = first + half[:600] + NOISE + first + half
    size = len(first) + 600 + len(NOISE)
    parts = parts_of(raw, size)
    check(parts, raw)
    last = parts[-1]
    assert isinstance(last.content, Node)
    assert last.copies is not None
    assert [child.found.size > 0.9 * len(half) for child in last.content.children] == [True]
    assert last.copies.removed >= len(first) - 64


def closed(root):
    opened = np.concatenate([node.own for node in root.nodes()])
    return tree.close(tree.read(tree.to_bytes(root), opened), 1 << 26)


def test_a_record_whose_name_is_a_copy_stays_whole():
    texts = [tuple(inputs.words(400, 5 * number + seed) for seed in range(4)) for number in range(2)]
    first, second = (wrapped.wheel(each, name="words-" * 30 + "1.0") for each in texts)
    raw = first + NOISE + second
    parts = parts_of(raw, len(raw) // 2)
    check(parts, raw)
    roots = [part for part in parts if isinstance(part.content, Node)]
    assert any(part.copies for part in roots)
    assert all(np.array_equal(closed(part.content), part.rest) for part in roots)


def test_a_manifest_whose_members_are_copies_stays_whole():
    first, second = wrapped.signed_jar(), wrapped.signed_jar(wrong=b"Name: none\r\nX: 1\r\n\r\n")
    raw = first + NOISE + second
    parts = parts_of(raw, len(raw) // 2)
    check(parts, raw)
    last = parts[-1]
    assert isinstance(last.content, Node) and last.copies
    assert np.array_equal(closed(last.content), last.rest)


def test_a_chunk_without_repeats_is_cut_as_without_a_window():
    raw = inputs.words(300_000) + NOISE
    plain, _ = resolve_settings(1, 1, SIZE, None, LanguageOptions(), True, False)
    with_window, without = parts_of(raw), parts_of(raw, settings=plain)
    assert [(part.data.size, part.content) for part in with_window] == [
        (part.data.size, part.content) for part in without
    ]


def test_windows_of_one_repeated_byte_are_no_samples():
    for byte in range(256):
        hashed = 0
        for _ in range(matches.WIDTH):
            hashed = ((hashed << 2) + int(matches.GEAR[byte])) % 2**64
        assert hashed >> 60
