"""Listings of stores: page by page, in the order of keys, and many objects asked about at once."""

import pytest

from bench.shared.generated_store import Generated
from squeeze.system import storage
from squeeze.system.listing import infos
from squeeze.system.remote_path import look_together
from tests.makers.remote import Store


@pytest.fixture(autouse=True)
def empty():
    Store.reset()
    Generated.listed = 0


def test_a_page_is_listed_when_it_is_asked_for():
    found = storage.remote(storage.path_of("generated://corpus-5000")).walk()
    first = next(found)
    assert Generated.listed == 1000
    assert str(first) == "generated://corpus-5000/2026/part-0000000000.jsonl" and first.lstat().st_size == 2000
    rest = list(found)
    assert len(rest) == 4999 and Generated.listed == 5000
    assert sorted(rest) == rest


def test_a_store_without_pages_is_listed_prefix_by_prefix():
    for key in ("a/b/c", "a/b-c", "a/b.c", "a/b/", "a/z", "ab", "a/b/d/e"):
        Store.put(key, b"data")
    root = storage.remote(storage.path_of("fake://a"))
    found = root.walk()
    assert str(next(found)) == "fake://a/b-c" and len([one for one in Store.requests if one[0] == "list"]) == 1
    assert [str(path) for path in found] == ["fake://a/b.c", "fake://a/b/c", "fake://a/b/d/e", "fake://a/z"]


def test_many_are_asked_about_at_once():
    Store.put("a/one", b"data")
    paths = [storage.remote(storage.path_of(f"fake://a/{name}")) for name in ("one", "none")]
    look_together(paths)
    Store.requests.clear()
    assert [path.exists() for path in paths] == [True, False] and paths[0].lstat().st_size == 4
    assert not Store.requests
    Store.fail("head", OSError("broken"))
    (found,) = infos(*[paths[0]._place[0], ["a/one"]])
    assert isinstance(found, OSError)
    look_together(paths)
    assert paths[0].exists()
    assert not look_together([])
