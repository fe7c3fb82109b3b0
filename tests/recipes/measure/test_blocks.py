"""`inspect --blocks` shows lists of blocks, with as many matrices as are compressed."""

import json

import pytest

from squeeze.recipes.measure.blocks import Blocks, blocks_of
from tests.makers import zoo_others
from tests.makers.command import call

pytest.importorskip("transformers", reason="transformers is not installed")


def test_lists_of_blocks_are_shown(tmp_path):
    folder = zoo_others.write(tmp_path / "model", "WhisperForConditionalGeneration")
    layer = 4 * 64 * 64 + 2 * 64 * 128
    expected = [
        Blocks("model.encoder.layers", 2, 12, 2 * layer),
        Blocks("model.decoder.layers", 2, 20, 2 * (layer + 4 * 64 * 64)),
        Blocks("outside of lists", 0, 1, 512 * 64),
    ]
    assert blocks_of(folder) == expected
    shown = call("inspect", folder, "--blocks")
    assert shown.output.splitlines()[1].split() == ["2", "12", f"{2 * layer:,}", "model.encoder.layers"]
    document = json.loads(call("inspect", folder, "--blocks", "--json").output)
    assert [Blocks(**one) for one in document["lists"]] == expected
    assert "leave out --report" in call("inspect", folder, "--blocks", "--base", folder).output
