"""YAML from anywhere: plain values, no aliases, and one line for all else."""

import pytest

from squeeze.errors import FormatError
from squeeze.system.yaml_object import read_yaml

pytest.importorskip("yaml", reason="PyYAML is not installed")

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "aliases are not taken": BOMB,
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
    "a date is not taken": "a: 2024-01-01",
    "a bytes is not taken": "a: !!binary aGk=",
    "a set is not taken": "a: !!set {x}",
    "a key that is not a text": "1: 2",
    "is not YAML: while constructing a mapping": "? [a]\n: 1",
    "and at most that are read": "a: " + "x" * (1 << 17),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_files_end_in_one_line(tmp_path, message):
    text = HOSTILE[message]
    path = tmp_path / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FormatError) as found:
        read_yaml(path)
    said = str(found.value)
    assert message in said and said.startswith(f"{path}: ") and said.isprintable()
    assert len(said) < len(str(path)) + 300


def test_plain_values(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: [1, -2.5, true, null, 'x\u00e9']\nb: {c: 600M, d: &unused 3}\n")
    assert read_yaml(path) == {"a": [1, -2.5, True, None, "x\u00e9"], "b": {"c": "600M", "d": 3}}
    path.write_text("")
    assert read_yaml(path) is None
