"""Listings of stores: page by page, in the order of keys, and many objects asked about at once."""

import pytest

from squeeze.errors import SqueezeError
from squeeze.system import storage
from squeeze.system.remote_info import infos, objects
from squeeze.system.remote_path import look_together
from tests.makers.generated_store import Generated
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
        Store.put(key, b"" if key.endswith("/") else b"data")
    root = storage.remote(storage.path_of("fake://a"))
    found = root.walk()
    assert str(next(found)) == "fake://a/b-c" and len([one for one in Store.requests if one[0] == "list"]) == 1
    assert [str(path) for path in found] == ["fake://a/b.c", "fake://a/b/c", "fake://a/b/d/e", "fake://a/z"]


def test_an_object_whose_key_ends_in_a_slash_is_listed_where_it_holds_something():
    for key, data in (("a/b/", b"data"), ("a/c/", b""), ("a/c/d", b"data")):
        Store.put(key, data)
    assert [str(path) for path in storage.remote(storage.path_of("fake://a")).walk()] == ["fake://a/b/", "fake://a/c/d"]


EMPTY_PARTS = ("a//b", "a//c/d", "a//c//e", "a///f", "a/g", "a/-", "a/0/h")


def test_keys_with_an_empty_part_are_found_by_their_beginnings():
    for key in (*EMPTY_PARTS, "aa", "a//"):
        Store.put(key, b"" if key.endswith("/") else b"data")
    root = storage.remote(storage.path_of("finding://a"))
    walked = [str(path).removeprefix("finding://") for path in root.walk()]
    assert walked == sorted(EMPTY_PARTS)
    assert [one[1:] for one in Store.requests if one[0] == "find"] == [("a", "/")]
    for key in EMPTY_PARTS:
        assert (root / key.removeprefix("a/")).read_bytes() == b"data"


def test_an_object_for_the_prefix_itself_is_no_empty_part():
    Store.put("a/", b"")
    Store.put("a/b", b"data")
    assert [str(path) for path in storage.remote(storage.path_of("finding://a")).walk()] == ["finding://a/b"]


def test_where_they_are_not_found_one_path_stands_for_them():
    for key in ("a/b", "a//b", "a/d//e"):
        Store.put(key, b"data")
    root = storage.remote(storage.path_of("fake://a"))
    assert [(str(path), bool(path.unlisted)) for path in root.walk()] == [
        ("fake://a//", True),
        ("fake://a/b", False),
        ("fake://a/d//", True),
    ]
    with pytest.raises(SqueezeError, match=r"fake://a//: the storage's package lists no keys with an empty part"):
        root.descendants()


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


class Unordered:
    """A store that lists keys in no order, and breaks once."""

    breaks_after: int | None = None

    @classmethod
    def objects(cls, fs, path):
        for number, name in enumerate(("fake://a/c", "fake://a/a", "fake://a/b")):
            if number == cls.breaks_after:
                cls.breaks_after = None
                raise OSError("broken")
            yield {"name": name.removeprefix("fake://"), "type": "file", "size": 1}


def test_a_listing_in_no_order_is_whole_or_an_error(monkeypatch):
    monkeypatch.setattr("squeeze.system.remote_path.objects", Unordered.objects)
    root = storage.remote(storage.path_of("fake://a"))
    assert [path.name for path in root.walk()] == ["c", "a", "b"]
    monkeypatch.setattr(Unordered, "breaks_after", 0)
    assert [path.name for path in root.walk()] == ["c", "a", "b"]
    monkeypatch.setattr(Unordered, "breaks_after", 2)
    with pytest.raises(SqueezeError, match="its keys are not sorted"):
        list(root.walk())


def test_a_listing_that_breaks_off_goes_on(monkeypatch):
    for key in ("a/a", "a/b", "a/c"):
        Store.put(key, b"data")
    whole = [str(path) for path in storage.remote(storage.path_of("fake://a")).walk()]

    def breaking(fs, path, objects=objects, state=[1]):  # noqa: B006
        for number, info in enumerate(objects(fs, path)):
            if number == 2 and state and state.pop():
                raise OSError("broken")
            yield info

    monkeypatch.setattr("squeeze.system.remote_path.objects", breaking)
    assert [str(path) for path in storage.remote(storage.path_of("fake://a")).walk()] == whole


def test_each_store_is_asked_about_its_own():
    Store.put("a/one", b"data")
    Generated.listed = 0
    paths = [storage.remote(storage.path_of(name)) for name in ("memory://none", "fake://a/one", "memory://other")]
    look_together(paths)
    assert [path.exists() for path in paths] == [False, True, False]
