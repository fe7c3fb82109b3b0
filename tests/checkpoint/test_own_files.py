"""A tensor that several shards hold: the index decides, and what no index decides is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.weight_files import own_files
from squeeze.errors import FormatError
from squeeze.lm.sources import open_source
from tests.makers import tiny_models
from tests.makers.checkpoints import content, write

pytestmark = pytest.mark.usefixtures("in_folder")

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def row(value: float) -> tuple[str, tuple[int, ...], bytes]:
    return "F32", (64,), np.full(64, value, np.float32).tobytes()


def twice(own: str, folder: str = "model") -> Path:
    """A folder whose tensor `a` is in both shards, with other values; the index names one."""
    path = Path(folder)
    path.mkdir()
    write(path / FIRST, {"a": row(1), "b": row(3)})
    write(path / SECOND, {"a": row(2), "c": row(3)})
    places = {"a": own, "b": FIRST, "c": SECOND}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


@pytest.mark.parametrize(("own", "value"), [(FIRST, 1), (SECOND, 2)])
def test_the_index_decides(own, value):
    folder = twice(own)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.load(["a"])["a"].unique().tolist() == [value] and sorted(checkpoint.files) == ["a", "b", "c"]
    squeeze.pack(folder, "packed")
    weights = squeeze.load("packed", resident="1M")
    assert weights["a"].unique().tolist() == [value] and sorted(weights) == ["a", "b", "c"]
    squeeze.unpack("packed", "back")
    assert content("back") == content("model")


def test_what_no_index_decides_is_refused():
    for name in ("text_encoder", "text_encoder_2"):
        Path("model", name).mkdir(parents=True)
        write(Path("model", name, "model.safetensors"), {"a": row(len(name))})
    squeeze.pack("model", "packed")
    with pytest.raises(FormatError, match=r"tensor 'a' is in packed/text_encoder/model.safetensors, too, and no index"):
        squeeze.load("packed")
    assert squeeze.load("packed/text_encoder/model.safetensors")["a"][0] == len("text_encoder")


def test_an_index_that_names_a_third_file_decides_nothing():
    folder = twice(FIRST)
    with pytest.raises(FormatError, match="no index says which"):
        own_files({folder / SECOND: ["a"], folder / "other": ["a"]}, [folder / "model.safetensors.index.json"])


def test_language_models_are_read_by_the_index():
    folder = tiny_models.write_folder(Path("tiny"), tiny_models.byte_level())
    plain = folder / "model.safetensors"
    wanted = open_source(folder)
    shape = wanted.tensors["embedding"].shape
    write(folder / SECOND, {"model.embed_tokens.weight": ("F32", shape, bytes(4 * shape[0] * shape[1]))})
    wanted = {key: tensor.rows(0, 1) for key, tensor in wanted.tensors.items()}
    plain.rename(folder / FIRST)
    tensors = squeeze.safe_open(folder / FIRST, "np").keys()
    places = {"weight_map": dict.fromkeys(tensors, FIRST)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(places))
    found = open_source(folder)
    for key, rows in wanted.items():
        assert np.array_equal(found.tensors[key].rows(0, 1), rows)
