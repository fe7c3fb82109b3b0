"""The dictionaries that come with the package."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from squeeze.codecs.deep import coder, presets
from squeeze.codecs.stream import built_in
from squeeze.errors import SqueezeError
from tests.makers import inputs

FORMAT = Path(__file__).parents[3] / "docs" / "format.md"


@pytest.mark.parametrize("name", built_in.IDENTITIES)
def test_they_are_those_of_the_format(name):
    assert f"`{built_in.IDENTITIES[name]}`" in FORMAT.read_text()


@pytest.mark.parametrize("level", [5, 6])
def test_text_is_smaller_with_them(level):
    preset = presets.preset(level, "text")
    data = np.frombuffer(inputs.python_text(6_000), np.uint8)
    plain = coder.encode(data, replace(preset, taught=""))
    known = coder.encode(data, preset, start=built_in.start(preset))
    assert len(known) < 0.985 * len(plain)
    assert np.array_equal(coder.decode(known, data.size, preset, start=built_in.start(preset)), data)


def test_those_that_were_changed_are_not_used(monkeypatch, tmp_path):
    name = "text.5"
    changed = bytearray((built_in.FOLDER / f"{name}.sqzp").read_bytes())
    changed[len(changed) // 2] ^= 1
    for folder, content in ((tmp_path / "changed", bytes(changed)), (tmp_path / "missing", None)):
        folder.mkdir()
        if content:
            (folder / f"{name}.sqzp").write_bytes(content)
        monkeypatch.setattr(built_in, "FOLDER", folder)
        with pytest.raises(SqueezeError, match="install squeeze again"):
            built_in._read.__wrapped__(name)


def test_a_file_is_the_one_that_its_identity_names():
    for name, identity in built_in.IDENTITIES.items():
        assert hashlib.sha256((built_in.FOLDER / f"{name}.sqzp").read_bytes()).hexdigest() == identity
