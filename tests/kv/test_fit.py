"""Tensors of a file that are no cache of its policy, behind a checksum that is right, never get into a layer."""

import pytest
import torch

from squeeze.errors import DamagedError
from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache
from squeeze.kv.saved import Record, decoded, encoded
from tests.kv.test_file import filled, same
from tests.kv.test_saved import CODES, SCALE, checked, parts
from tests.makers.kv_models import llama, mistral


@pytest.fixture(scope="module")
def model():
    return llama()


def changed_tensors(path, change):
    """Write a file again with other tensors: names, and values that are what their records say."""
    description, payloads = parts(path.read_bytes())
    tensors = {name: decoded(name, payloads[name], Record(**r)) for name, r in description["records"].items()}
    change(tensors)
    made = {name: encoded(tensor, 0) for name, tensor in tensors.items()}
    description["records"] = {name: record for name, (_, record) in made.items()}
    path.write_bytes(checked(description, {name: payload for name, (payload, _) in made.items()}))


TENSORS = {
    "a tensor more": lambda tensors: tensors.update({"0.part.0.keys.more": tensors[SCALE]}),
    "a tensor of no layer": lambda tensors: tensors.update({"2.first.0": tensors["0.first.0"]}),
    "a tensor of nothing": lambda tensors: tensors.update({"x": tensors["0.first.0"]}),
    "a part more": lambda tensors: tensors.update({"0.part.1.keys.scale": tensors[SCALE]}),
    "a tensor less": lambda tensors: tensors.pop(SCALE),
    "no sinks": lambda tensors: tensors.pop("0.first.1"),
    "codes of fewer bytes": lambda tensors: tensors.update({CODES: tensors[CODES][..., :-1]}),
    "codes of more bytes": lambda tensors: tensors.update({CODES: torch.cat([tensors[CODES]] * 2, -1)}),
    "codes of fewer blocks": lambda tensors: tensors.update({CODES: tensors[CODES][:, :, 1:]}),
    "codes of fewer rows": lambda tensors: tensors.update({CODES: tensors[CODES][..., 1:, :]}),
    "codes of another type": lambda tensors: tensors.update({CODES: tensors[CODES].float()}),
    "scales of another type": lambda tensors: tensors.update({SCALE: tensors[SCALE].half()}),
    "scales of fewer heads": lambda tensors: tensors.update({SCALE: tensors[SCALE][:, 1:]}),
    "sinks of bytes": lambda tensors: tensors.update({"0.first.0": tensors["0.first.0"].byte()}),
    "sinks of another type": lambda tensors: tensors.update({"0.first.0": tensors["0.first.0"].half()}),
    "sinks of more tokens": lambda tensors: tensors.update(
        {f"0.first.{i}": torch.cat([tensors[f"0.first.{i}"]] * 2, 2) for i in range(2)}
    ),
    "values of fewer tokens": lambda tensors: tensors.update({"0.recent.1": tensors["0.recent.1"][:, :, 1:]}),
    "recent of fewer channels": lambda tensors: tensors.update({"0.recent.1": tensors["0.recent.1"][..., 1:]}),
    "recent of three dimensions": lambda tensors: tensors.update({"0.recent.1": tensors["0.recent.1"][0]}),
    "no heads": lambda tensors: tensors.update(
        {name: tensors[name][:, :0] for name in ("0.first.0", "0.first.1", "0.recent.0", "0.recent.1")}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_no_cache_are_refused(name, model, tmp_path):
    path = tmp_path / "a.kv"
    filled(model, KIVI(4, group=16, window=16)).save(path)
    changed_tensors(path, lambda tensors: None)
    QuantizedKVCache.load(path, model.config)
    changed_tensors(path, TENSORS[name])
    with pytest.raises(DamagedError, match="the tensors do not make up a KV cache of this policy"):
        QuantizedKVCache.load(path, model.config)


def test_a_sliding_window_drops_only_what_it_does_not_see(tmp_path):
    model, path = mistral(), tmp_path / "a.kv"
    cache = filled(model, FullPrecision(), 60)
    cache.save(path)
    same(cache, QuantizedKVCache.load(path, model.config))
    fewer = {f"0.recent.{i}": cache.layers[0].residual[i][:, :, 1:] for i in range(2)}
    changed_tensors(path, lambda tensors: tensors.update(fewer))
    with pytest.raises(DamagedError, match="do not make up a KV cache"):
        QuantizedKVCache.load(path, model.config)
