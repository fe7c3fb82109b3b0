"""JSON and YAML from anywhere: bounded, and every refusal is one line."""

import json
import re
from pathlib import Path

import pytest

import squeeze
from squeeze.errors import FormatError, LimitError
from squeeze.system.documents import check, parse, parse_object, read_object, read_yaml
from squeeze.system.limits import Limits

HOSTILE = {
    "is not JSON": "[" * 100_000,
    "is nested more than 64 deep": '{"a":' * 65 + "1" + "}" * 65,
    "is nested more than 64": '{"a":' + "[" * 64 + "]" * 64 + "}",
    "has 'a' twice": '{"b": {"a": 1, "a": 2}}',
    r"has '\x1b\ud800' twice": '{"\\u001b\\ud800": 1, "\\u001b\\ud800": 2}',
    "is not a JSON object": "[1]",
    "is not JS": '{"a": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_texts_end_in_one_line(message):
    with pytest.raises(FormatError) as found:
        parse_object(HOSTILE[message])
    assert message in str(found.value) and str(found.value).isprintable()


def test_an_object_is_parsed():
    assert parse_object('{"a": [1, {"b": null}], "c": 1e3}') == {"a": [1, {"b": None}], "c": 1000.0}
    assert parse_object('{"a":' * 63 + "{}" + "}" * 63)


SCHEMA = {"name": str, "size": int, "share?": float, "parts": [int], "more?": {...: (str, None)}}
GOOD = {"name": "a", "size": 1, "parts": []}


@pytest.mark.parametrize("more", [{}, {"share": 1}, {"share": 0.5}, {"parts": [1, 2]}, {"more": {"a": None, "b": "c"}}])
def test_accepts_what_the_schema_allows(more):
    check(GOOD | more, SCHEMA)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected an object, got []"),
        ({"name": "a", "size": 1}, "'parts' is missing"),
        (GOOD | {"size": True}, "size: expected a whole number, got True"),
        (GOOD | {"size": 1.0}, "size: expected a whole number, got 1.0"),
        (GOOD | {"share": "1"}, "share: expected a number, got '1'"),
        (GOOD | {"parts": [1, None]}, "parts: expected a whole number, got None"),
        (GOOD | {"parts": {}}, "parts: expected a list, got {}"),
        (GOOD | {"more": {"a": 7}}, "more.a: expected a text or null, got 7"),
        (GOOD | {"o\nther": 7}, "the key 'o\\nther' is unknown"),
    ],
)
def test_refuses_what_the_schema_does_not_allow(value, message):
    with pytest.raises(FormatError) as raised:
        check(value, SCHEMA)
    assert str(raised.value) == message


def test_bytes_and_memory_are_bounded(tmp_path):
    with pytest.raises(FormatError, match=r"^expected at most 5 bytes of JSON, got 6 or more$"):
        parse(b"[1, 2]", most=5)
    bomb = b"[" + b"[]," * 1_000_000 + b"[]]"
    with pytest.raises(LimitError, match=r"needs .* bytes of memory"):
        parse(bomb, Limits(memory=64 << 20))
    (tmp_path / "a.json").write_bytes(bomb)
    with pytest.raises(LimitError, match=r"needs .* bytes of memory"):
        read_object(tmp_path / "a.json", Limits(memory=64 << 20))


def test_the_index_of_a_shard_takes_little(tmp_path):
    """Refuse a line of lists that is a few bytes as a .sqz file and gigabytes as objects."""
    raw = b"x" * 2_000
    (tmp_path / "a.tar.sqz").write_bytes(squeeze.compress(raw, 1))
    first = {"format": "squeeze.members", "version": 1, "size": len(raw), "checksum": "0" * 16}
    line = b"[" + b"[]," * 1_000_000 + b"[]]\n"
    (tmp_path / "a.tar.members.sqz").write_bytes(squeeze.compress(json.dumps(first).encode() + b"\n" + line, 1))
    limits, said = Limits(memory=256 << 20), "a line is invalid"
    with squeeze.open(tmp_path / "a.tar.sqz", limits=limits) as file, pytest.raises(FormatError, match=said):
        file.members()


ROUND_TRIPS = {  # own text, or text whose size and checksum are known: it needs no reader
    *(
        "squeeze/recipes/run.py",
        "squeeze/cluster/planning.py",
        "squeeze/codecs/shards/plan.py",
        "squeeze/cluster/manifest.py",
    ),
    *("squeeze/codecs/package_data.py", "squeeze/lm/loading.py", "squeeze/lm/tokenizer.py", "squeeze/lm/convert.py"),
    *("squeeze/lm/llamacpp_engine.py", "squeeze/integrations/gguf/loading.py", "squeeze/integrations/ray.py"),
    *("squeeze/codecs/stream/container.py", "squeeze/system/documents.py"),
}


def test_json_of_files_has_one_reader():
    root = Path(squeeze.__file__).parent
    users = {path for path in root.rglob("*.py") if re.search(r"json\.loads?\(", path.read_text())}
    assert {path.relative_to(root.parent).as_posix() for path in users} == ROUND_TRIPS


pytest.importorskip("yaml", reason="PyYAML is not installed")

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE_YAML = {
    "aliases are not supported": BOMB,
    "line 1: aliases": "&a [*a]",
    "is nested more than 16 deep": "[" * 5000 + "]" * 5000,
    "is nested more than 16": "".join("  " * i + "a:\n" for i in range(100)),
    "is not YAML: Exceeds the limit": "a: " + "9" * 5000,
    "has more than 18 digits": "a: " + "9" * 100,
    "is not YAML: invalid literal for int": "a: !!int x",
    "is not YAML: 'maybe'": "a: !!bool maybe",
    "is not YAML: could not convert": "a: !!float x",
    "is not YAML: 'NoneType' object": "a: !!timestamp x",
    "is not YAML: month must be": "a: 2024-99-99",
    "is not YAML: could not determine a constructor": "a: !!python/object/apply:os.system ['touch /tmp/x']",
    "is not YAML: unacceptable character": "a: \0",
    "is not YAML: unacceptable character #x00ff": b"a: \xff\xff",
    "got a date": "a: 2024-01-01",
    "got a bytes": "a: !!binary aGk=",
    "got a set": "a: !!set {x}",
    "expected strings as keys": "1: 2",
    "is not YAML: while constructing a mapping": "? [a]\n: 1",
    "bytes of YAML, got more": "a: " + "x" * (1 << 17),
}


@pytest.mark.parametrize("message", HOSTILE_YAML)
def test_hostile_yaml_ends_in_one_line(tmp_path, message):
    text = HOSTILE_YAML[message]
    path = tmp_path / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FormatError) as found:
        read_yaml(path)
    said = str(found.value)
    assert message in said and said.startswith(f"{path}: ") and said.isprintable()
    assert len(said) < len(str(path)) + 300


def test_plain_yaml_values_are_parsed(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: [1, -2.5, true, null, 'x\u00e9']\nb: {c: 600M, d: &unused 3}\n")
    assert read_yaml(path) == {"a": [1, -2.5, True, None, "x\u00e9"], "b": {"c": "600M", "d": 3}}
    path.write_text("")
    assert read_yaml(path) is None
