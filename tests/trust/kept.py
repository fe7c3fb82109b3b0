"""More samples: stores of models, and adapters that name their base."""

import json
import shutil
import struct
from pathlib import Path

import torch
from safetensors.torch import save_file

import squeeze
from squeeze.checkpoint.lora_folder import ADAPTER, CONFIG, PREFIX
from squeeze.packing.store import Store
from tests.trust import samples
from tests.trust.samples import Command, Sample, _copied, _json

NAMES = (*samples.NAMES, "model of a store", "object of a store", "adapter")
_START = struct.Struct("<4sI")


def make(here: Path) -> dict[str, Sample]:
    """All samples, for which `here` may be used."""
    made = samples.make(here)
    return made | _of_stores(here) | _of_adapters(here)


def _of_stores(here: Path) -> dict[str, Sample]:
    store = Store(here / "store")
    store.add(here / "model")
    key = store.model("model").files["model.safetensors"].tensors[0].key
    place = store.objects.place(key)
    data = place.read_bytes()
    magic, length = _START.unpack_from(data)
    described, payload = json.loads(data[_START.size : _START.size + length]), data[_START.size + length :]

    def to_bytes(value: object) -> bytes:
        text = _json(value)
        return _START.pack(magic, len(text)) + text + payload

    def copy(folder: Path) -> None:
        shutil.copytree(here / "store", folder / "store")
        for path in (folder / "store").rglob("*"):
            path.chmod(0o755)

    get: Command = ("store", "get", "store", "model", "out")
    rest = [("store", way, "store") for way in ("gc", "verify", "list")]
    commands: tuple[Command, ...] = (
        *(get, *rest, ("store", "add", "store", "t.txt"), ("store", "remove", "store", "model")),
        lambda: list(squeeze.load("store", model="model").items()),
    )
    return {
        "model of a store": Sample(
            "store/models/model", json.loads((here / "store/models/model").read_text()), _json, commands, copy
        ),
        "object of a store": Sample(str(place.relative_to(here)), described, to_bytes, commands, copy),
    }


def _of_adapters(here: Path) -> dict[str, Sample]:
    """Return an adapter next to its base."""
    (here / "lora").mkdir()
    config = json.loads((here / "model/config.json").read_text())
    module, width = f"{PREFIX}model.layers.0.self_attn.q_proj", config["hidden_size"]
    factors = {"lora_A.weight": torch.ones(2, width), "lora_B.weight": torch.ones(width, 2)}
    save_file({f"{module}.{leaf}": part for leaf, part in factors.items()}, here / "lora" / ADAPTER)
    value = {"peft_type": "LORA", "base_model_name_or_path": "model", "r": 2, "lora_alpha": 4, "bias": "none"}
    value |= {"target_modules": ["q_proj"], "revision": "x", "auto_mapping": {"parent_library": "x"}}

    def both(folder: Path) -> None:
        _copied(here / "model")(folder)
        _copied(here / "lora", "lora")(folder)

    commands: tuple[Command, ...] = (
        *(("densify", "lora", "out"), ("densify", "lora", "out", "--base", "model"), ("pack", "lora", "out")),
        *(("quantize", "lora", "out", "--method", "rtn"), ("inspect", "lora"), ("store", "add", "s", "lora")),
    )
    return {"adapter": Sample(f"lora/{CONFIG}", value, _json, commands, both)}
