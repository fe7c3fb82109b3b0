"""model.safetensors.index.json: which shard has which tensor, all of them in the folder."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.weight_files import INDEX
from squeeze.integrations.load_model import load_model
from squeeze.lm import models
from tests.fuzz import mutations, tensorfiles
from tests.fuzz.formats.packed import bytes_of
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of
from tests.fuzz.limited import limited
from tests.makers import tiny_models

_SHARD = "model-00001-of-00002.safetensors"


@dataclass(frozen=True)
class Case:
    data: bytes
    way: str


class Index:
    """A folder of two shards. Beside it lies a file of the same tensors with other values, which is not to be read."""

    seconds = 0.03

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = tiny_models.write_folder(folder / "model", tiny_models.byte_level(), vocab_size=400)
        whole = tensorfiles.parsed((self.folder / "model.safetensors").read_bytes())
        (self.folder / "model.safetensors").unlink()
        self.tensors = {tensor: whole.payload(tensor) for tensor in whole.entries()}
        order = list(self.tensors)
        self.parts = {_SHARD: order[::2], _SHARD.replace("00001", "00002", 1): order[1::2]}
        for shard, names in self.parts.items():
            (self.folder / shard).write_bytes(_built(whole, names, self.tensors))
        other = {tensor: bytes(len(payload)) for tensor, payload in self.tensors.items()}
        (folder / "outside.safetensors").write_bytes(_built(whole, order, other))
        self.outside = folder / "outside.safetensors"
        places = {tensor: shard for shard, names in self.parts.items() for tensor in names}
        self.index: dict[str, Any] = {"metadata": {"total_size": 1}, "weight_map": places}
        for way in ("load", "pack", "language", "model"):
            (box := folder / f"read.{way}").mkdir()
            self.read(Case(json.dumps(self.index).encode(), way), box)

    def mutate(self, random: Random) -> Case:
        data = one_of(
            random,
            (1, lambda r: mutations.damaged(json.dumps(self.index).encode(), r)),
            (4, lambda r: mutations.to_json(mutations.mutated(self.index, r)).encode("utf-8", "surrogatepass")),
            (4, self._places),
        )
        return Case(data, random.choice(("load", "load", "pack", "language", "model")))

    def _places(self, random: Random) -> bytes:
        """Tensors in other shards, some of which are no shards."""
        places = dict(self.index["weight_map"])
        shards = (
            *self.parts,
            *("../outside.safetensors", str(self.outside), "config.json", "tokenizer.json", "", ".", "..", "/dev/zero"),
            *(
                "/dev/stdin",
                "missing.safetensors",
                "a" * 300,
                "\0",
                f"./{_SHARD}",
                f"../model/{_SHARD}",
                3,
                None,
                [],
                {},
            ),
        )
        for name in random.sample(list(places), random.choice((1, 1, 5, len(places)))):
            places[name] = random.choice(shards)
        if random.random() < 0.2:
            places[str(random.choice(mutations.TEXTS))] = _SHARD
        return json.dumps({**self.index, "weight_map": places}).encode("utf-8", "surrogatepass")

    def read(self, case: Case, folder: Path) -> str:
        model = folder / "model"
        model.mkdir()
        for path in self.folder.iterdir():
            os.link(path, model / path.name)
        os.link(self.outside, folder / "outside.safetensors")
        (model / INDEX).write_bytes(case.data)
        if case.way == "pack":
            squeeze.pack(model, folder / "packed", verify=False)
            limited(squeeze.unpack, folder / "packed", folder / "back")
        elif case.way == "language":
            models._loaded.cache_clear()
            if models.find(model).weights.embedding.shape[0] == 0:
                raise Wrong("language: no weights")
        elif case.way == "model":
            self._check({name: bytes_of(tensor) for name, tensor in limited(load_model, model).state_dict().items()})
        else:
            checkpoint = Checkpoint.open(model)
            self._check({name: bytes_of(tensor) for name, tensor in checkpoint.load(checkpoint.files).items()})
        return SAME if case.data == json.dumps(self.index).encode() else TRUE

    def _check(self, found: dict[str, bytes]) -> None:
        if any(self.tensors.get(name) != data for name, data in found.items()):
            raise Wrong("a tensor is not that of the folder's shards")


def _built(whole: tensorfiles.TensorFile, names: list[str], values: dict[str, bytes]) -> bytes:
    header, body = {}, b""
    for name in names:
        header[name] = {**whole.header[name], "data_offsets": [len(body), len(body) + len(values[name])]}
        body += values[name]
    return tensorfiles.TensorFile({tensorfiles.METADATA: {"format": "pt"}, **header}, body).to_bytes()


FORMAT = Index
