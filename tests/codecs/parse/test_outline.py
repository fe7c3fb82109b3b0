"""Outlines of trees: names and places of contents, and numbers of wrappers."""

import numpy as np
import pytest

from squeeze.codecs.parse import outline, tree
from tests.codecs.parse.trees import parsed
from tests.makers import wrapped

DOCUMENTS = wrapped.documents()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_segments_cover_the_opened_bytes_once(name):
    root = parsed(DOCUMENTS[name])
    places = [place for start, end, _ in outline.in_place(root) for place in range(start, end)]
    assert sorted(places) == list(range(sum(node.own.size for node in root.nodes())))


def test_contents_have_the_names_in_headers_and_are_in_the_place_of_their_wrappers():
    root = parsed(DOCUMENTS["nested"])
    opened = np.concatenate([node.own for node in root.nodes()]).tobytes()
    segments = outline.in_place(root)
    assert [name for _, _, name in segments if name.endswith((".txt", ".gz"))] == [
        *(f"inner.zip > part-{number}.txt" for number in range(4)),
        "text.gz",
        "text.gz > content.txt",
    ]
    texts = [opened[start:end] for start, end, name in segments if name.endswith(".txt")]
    assert texts == [*wrapped.TEXTS, wrapped.TEXTS[3]]
    assert {name for _, _, name in segments} >= {"", "inner.zip"}


def test_wrappers_without_a_name_are_numbered():
    assert {name for _, _, name in outline.in_place(parsed(DOCUMENTS["zlib"]))} == {"", "zlib 1", "zlib 2"}
    assert {name for _, _, name in outline.in_place(parsed(DOCUMENTS["texts"]))} >= {"base64 1", "UTF-16 1"}


def test_control_characters_in_names_are_escaped():
    data = wrapped.zip_archive({"a\x1b[2J.txt": wrapped.TEXTS[0]})
    assert all(name.isprintable() for _, _, name in outline.in_place(parsed(data)))


def test_wrappers_are_counted_and_so_in_what_is_written():
    root = parsed(DOCUMENTS["nested"])
    assert outline.counts(root) == {"zip member": 6, "gzip": 1}
    assert outline.written_counts(tree.to_bytes(root)) == outline.counts(root)
    assert outline.in_words({"zip member": 14, "UTF-16": 1}) == "14 zip members, 1 UTF-16"
    assert outline.in_words({"zip member": 1, "base64": 3}) == "1 zip member, 3 base64"
