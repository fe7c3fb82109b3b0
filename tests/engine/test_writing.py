"""Layers of a finished block are written for the report, and read again when a run continues."""

import json

import pytest

from squeeze.engine.report import Layer
from squeeze.engine.writing import outer_part, read_layers
from squeeze.errors import FormatError


def test_layers_of_a_block_are_read_again(tmp_path):
    layer = Layer(name="lm_head", shape=(4, 8), method="rtn", bits=4.25, error=0.1, tokens=7)
    (tmp_path / f"{outer_part('lm_head')}.json").write_text(json.dumps([layer.as_json()]))
    assert read_layers(tmp_path, outer_part("lm_head")) == [layer]


def test_refuses_layers_that_are_damaged(tmp_path):
    (tmp_path / "block.json").write_text('{"name": 1}')
    with pytest.raises(FormatError):
        read_layers(tmp_path, "block")
