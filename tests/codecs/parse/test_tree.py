"""Wrappers are found, opened, written as a tree, and closed to the same bytes again."""

import numpy as np
import pytest

from squeeze.codecs.parse import tree
from squeeze.codecs.parse.finding import parse
from squeeze.codecs.parse.room import MOST_OPENED
from squeeze.codecs.parse.wrappers import WRAPPERS
from squeeze.errors import SqueezeError
from tests.codecs.parse import trees
from tests.codecs.parse.trees import closed, parsed
from tests.makers import jpegs, wrapped

DOCUMENTS = wrapped.documents()
KINDS = {
    "zip": ["zip member"] * 4,
    "wheel": ["zip member"] * 4,
    "signed archive": ["zip member"] * 6,
    "gzip": ["gzip"],
    "zlib": ["zlib"] * 2,
    "PNG": ["PNG"],
    "nested": ["zip member"] * 6 + ["gzip"],
    "cut off": ["zip member"] * 3,
    "texts": ["base64", "hexadecimal", "UTF-16"],
    "wrong sums": ["zip member", "deflate"],  # bare streams
}


def kinds_of(root: tree.Node) -> list[str]:
    return [WRAPPERS[child.kind].name for node in root.nodes() for child in node.children]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_wrappers_are_opened_and_closed(name):
    data = DOCUMENTS[name]
    root = parsed(data)
    assert sorted(kinds_of(root)) == sorted(KINDS[name])
    assert closed(root, len(data)) == data


def test_contents_are_what_was_wrapped():
    contents = [node.own.tobytes() for node in parsed(DOCUMENTS["nested"]).nodes()]
    assert set(wrapped.TEXTS) <= set(contents)


def test_what_does_not_pay_stays_closed():
    root = parse(np.frombuffer(DOCUMENTS["zip"], np.uint8), lambda data, found: found.content[0] == 0)
    assert root.children == () and root.own.tobytes() == DOCUMENTS["zip"]


def test_a_wrapper_that_does_not_pay_is_opened_for_what_is_in_it():
    outer = wrapped.gzip_file(DOCUMENTS["zip"])
    root = parse(np.frombuffer(outer, np.uint8), lambda data, found: found.content.size > 2_900)
    assert kinds_of(root) == ["gzip", *["zip member"] * 4] and closed(root, len(outer)) == outer


def test_a_bomb_stays_closed():
    bomb = wrapped.gzip_file(bytes(80 << 20))
    root = parsed(bomb)
    assert sum(node.own.size for node in root.nodes()) <= MOST_OPENED + len(bomb)


@pytest.mark.parametrize("name", ["nested", "PNG", "zlib", "signed archive"])
def test_damaged_trees_are_refused_or_give_other_bytes(name):
    data = DOCUMENTS[name]
    root, random = parsed(data), np.random.default_rng(0)
    written, opened = trees.written(root)
    refused = 0
    for _ in range(300):
        damaged = bytearray(written)
        damaged[random.integers(len(written))] ^= int(random.integers(1, 256))
        try:
            again = tree.read(bytes(damaged), opened)
            assert tree.close(again, 2 * len(data)).size <= 2 * len(data)
        except SqueezeError as error:
            refused += 1
            assert str(error).isprintable()
    assert refused > 20


def test_texts_in_a_photo_stay_in_it():
    photo = jpegs.by_hand(64, 48)
    comment = jpegs.segment(0xFE, wrapped.TEXTS[0][:900].decode().encode("utf-16-le"))
    data = photo[:2] + comment + photo[2:]
    assert parsed(data).children == ()
    assert kinds_of(parsed(comment + data + comment)) == ["UTF-16", "UTF-16"]
