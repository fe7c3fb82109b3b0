"""Names that a file tells of: what becomes a path, and what does not."""

from pathlib import Path

import pytest

from squeeze.errors import FormatError
from squeeze.system.storage import component, join_untrusted, path_of, relative, resolve_untrusted

ELSEWHERE = [
    *("", ".", "..", "/", "/etc/passwd", "../x", "a/../b", "a/..", "./a", "a//b", "a/", "a\0b", "\0"),
    *("http://host/x", "s3://bucket/key", "memory://x", "file:///etc/passwd", "simplecache::s3://b/k", "a::b"),
    *("C:", "C:x", "c:\\x", "a\\b", "..\\x", "\\\\host\\share", "\ud800", "a" * 256, "é" * 200, "a/" * 3000 + "a"),
    *(None, 7, True, ["a"], {"a": 1}, b"a"),
]
NAMES = ["a", "a.txt", "model-00001-of-00002.safetensors", " a", "~", "...", ".hidden", "é" * 127, "ab:c", "naïve.txt"]


@pytest.mark.parametrize("text", ELSEWHERE, ids=lambda text: repr(text)[:20])
def test_what_leads_elsewhere_is_no_name(text):
    for check in (component, relative, lambda text: join_untrusted(Path("folder"), text)):
        with pytest.raises(FormatError, match=r"^expected the (name|path) of .* got ") as raised:
            check(text)
        assert str(raised.value).isprintable() and len(str(raised.value)) < 300


@pytest.mark.parametrize("text", NAMES)
def test_names_of_files_are_accepted(text):
    assert component(text) == text and relative(f"sub/{text}") == f"sub/{text}"
    assert join_untrusted(Path("folder"), text) == Path("folder") / text
    with pytest.raises(FormatError, match="expected the name of one file or folder"):
        component(f"sub/{text}")


def test_whole_names_lie_where_the_caller_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus" / "sub").mkdir(parents=True)
    (tmp_path / "corpus" / "link").symlink_to("/etc")
    roots = [Path("corpus"), path_of("memory://bucket/corpus")]
    for text in ("corpus/a.sqz", "corpus/sub/a.sqz", f"{tmp_path}/corpus/a.sqz", "corpus/a::b.sqz"):
        assert resolve_untrusted(text, roots) == Path(text)
    for key in ("a/b.sqz", "a::b", "a::http:/x"):  # which is not parsed
        assert resolve_untrusted(f"memory://bucket/corpus/{key}", roots) == path_of("memory://bucket/corpus") / key
    for text in (
        *("other/a.sqz", "corpus/../a.sqz", "/etc/passwd", "corpus/link/passwd", "corpus/\0", "\ud800", 7, None, ""),
        *("memory://bucket/other", "memory://bucket/corpus/../x", "memory://bucket/corpus//x", "http://host/corpus/a"),
        *("memory://bucket/corpus/a/./x", "file:///etc/passwd", "s3://bucket/corpus/a"),
    ):
        with pytest.raises(FormatError, match=r"^expected "):
            resolve_untrusted(text, roots)
    with pytest.raises(FormatError, match="a folder that is named"):
        resolve_untrusted("a", [])
