"""A model's config.json: refused before a library sees it, or the model that it describes."""

import io
import json
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import explained, quiet
from squeeze.engine.network import Network
from squeeze.integrations.load_model import load_model
from squeeze.lm import models
from squeeze.quant.formats import QuantizationSpec
from squeeze.quant.formats.reading import read, summary
from tests.fuzz import mutations, tensorfiles
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of
from tests.fuzz.limited import limited
from tests.makers import networks, quantised, tiny_models

_MORE = {  # what a description may also hold, and a reader may believe
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0},
    "auto_map": {"AutoModelForCausalLM": "code.Model", "AutoConfig": "code.Config"},
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True},
    "layer_types": ["full_attention", "sliding_attention"],
    "torch_dtype": "float16",
    "sliding_window": 8,
    "head_dim": 8,
    "hidden_act": "gelu",
    "vocab_size": 400,
}


@dataclass(frozen=True)
class Case:
    data: bytes
    sample: int
    way: str


class Config:
    """Folders of several architectures, and of quantised weights; opened as every command opens them."""

    seconds = 0.05

    def __init__(self, name: str, folder: Path) -> None:
        quiet()
        self.name = name
        first = tiny_models.write_folder(folder / "llama", tiny_models.byte_level(), vocab_size=400)
        spec = QuantizationSpec(4, 16, ignored=("lm_head",))
        self.folders = [first, *(networks.save(kind, folder / kind) for kind in ("qwen2", "gpt2", "mixtral"))]
        for form in ("gptq", "compressed-tensors", "squeeze"):
            quantised.write(first, folder / form, form, spec)
            self.folders.append(folder / form)
        self.configs = [json.loads((path / "config.json").read_text()) for path in self.folders]
        self.shapes = [_shapes(path) for path in self.folders]
        for number, config in enumerate(self.configs):
            for way in _WAYS:
                (box := folder / f"{number}.{way}").mkdir()
                try:
                    self.read(Case(json.dumps(config).encode(), number, way), box)
                except squeeze.SqueezeError:
                    continue  # a way that is not for this folder

    def mutate(self, random: Random) -> Case:
        number = random.randrange(len(self.configs))
        config = self.configs[number]
        data = one_of(
            random,
            (1, lambda r: mutations.damaged(json.dumps(config).encode(), r)),
            (6, lambda r: _json(mutations.mutated(config, r))),
            (3, lambda r: _json(mutations.mutated(dict(r.sample(list(_MORE.items()), 2)), r), config)),
        )
        return Case(data, number, random.choice(list(_WAYS)))

    def read(self, case: Case, folder: Path) -> str:
        model = folder / "model"
        model.mkdir()
        for path in self.folders[case.sample].iterdir():
            if path.name != "config.json" and path.is_file():
                os.link(path, model / path.name)
        (model / "config.json").write_bytes(case.data)
        (model / "code.py").write_text(f"open({str(folder.parent / 'code-ran')!r}, 'w')")
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            _WAYS[case.way](model, self.shapes[case.sample])
        return SAME if case.data == json.dumps(self.configs[case.sample]).encode() else TRUE


def _json(value: Any, base: Any = None) -> bytes:
    merged = {**base, **value} if isinstance(base, dict) and isinstance(value, dict) else value
    return mutations.to_json(merged).encode("utf-8", "surrogatepass")


def _shapes(folder: Path) -> dict[str, list[int]]:
    files = [tensorfiles.parsed(path.read_bytes()) for path in folder.glob("*.safetensors")]
    return {name: entry["shape"] for file in files for name, entry in file.entries().items()}


def _network(model: Path, shapes: dict[str, list[int]]) -> None:
    network = limited(Network, Checkpoint.open(model))
    known = network.model.state_dict()
    for name, source in network.sources.items():
        if name in known and list(known[name].shape) != shapes[source]:
            raise Wrong("network: a parameter of another shape than its tensor")
    tokens = torch.zeros((1, 4), dtype=torch.int64)
    network.check(tokens)
    network.calls(tokens)


def _load(model: Path, shapes: dict[str, list[int]]) -> None:
    found = limited(load_model, model)
    with torch.no_grad(), explained(model):  # as commands run it
        found(torch.zeros((1, 4), dtype=torch.int64))


def _language(model: Path, shapes: dict[str, list[int]]) -> None:
    models._loaded.cache_clear()
    if not models.find(model).network.identity:
        raise Wrong("language: a model without an identity")


def _quantised(model: Path, shapes: dict[str, list[int]]) -> None:
    summary(model)
    for _ in read(model).dense():
        pass


def _pack(model: Path, shapes: dict[str, list[int]]) -> None:
    packed, back = model.with_name("packed"), model.with_name("back")
    squeeze.pack(model, packed, verify=False)
    limited(squeeze.unpack, packed, back)
    if (back / "config.json").read_bytes() != (model / "config.json").read_bytes():
        raise Wrong("pack: another config.json comes back")


_WAYS: dict[str, Callable[[Path, dict[str, list[int]]], None]] = {
    "network": _network,
    "load": _load,
    "language": _language,
    "quantised": _quantised,
    "pack": _pack,
}
FORMAT = Config
