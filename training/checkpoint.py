"""Save a training to one safetensors file: weights, optimizer states, and the places and states of rows."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from squeeze.recipes.train.byte_network import ByWords, Flat, Shape, build

if TYPE_CHECKING:
    from training.train import Training

_NAME = "checkpoint.safetensors"


def exists(folder: Path) -> bool:
    return (folder / _NAME).is_file()


def save(training: "Training", folder: Path) -> None:
    """Write the whole training, and replace the last file of the folder."""
    tensors = {f"model.{name}": weight for name, weight in training.model.state_dict().items()}
    for k, optimizer in enumerate(training.optimizers):
        for number, values in optimizer.state_dict()["state"].items():
            for name, value in values.items():
                tensors[f"optimizer.{k}.{number}.{name}"] = torch.as_tensor(value)
    tensors |= {f"state.{k}": part for k, part in enumerate(training.state)}
    tensors |= {f"rows.{name}": torch.from_numpy(getattr(training.rows, name)) for name in ("numbers", "offsets")}
    facts = {"seen": training.seen, "seconds": training.seconds, "shape": asdict(training.model.shape)}
    beside = folder / f".{_NAME}.new"
    save_file({name: value.contiguous().clone() for name, value in tensors.items()}, beside, {"": json.dumps(facts)})
    beside.replace(folder / _NAME)


def restore(training: "Training", folder: Path) -> None:
    """Set a new training to the saved state. Raises RuntimeError if the model has another shape."""
    with safe_open(folder / _NAME, framework="pt") as file:  # type: ignore[no-untyped-call]
        facts = json.loads(file.metadata()[""])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    training.seen, training.seconds = facts["seen"], facts["seconds"]
    training.model.load_state_dict(_under("model.", tensors))
    for k, optimizer in enumerate(training.optimizers):
        state: dict[int, dict[str, Any]] = {}
        for name, value in _under(f"optimizer.{k}.", tensors).items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    device = training.model.head.weight.device
    training.state = [tensors[f"state.{k}"].to(device) for k in range(len(training.state))]
    for name, value in _under("rows.", tensors).items():
        setattr(training.rows, name, value.numpy())


def model(folder: Path) -> Flat | ByWords:
    """Return the model of a saved training."""
    with safe_open(folder / _NAME, framework="pt") as file:  # type: ignore[no-untyped-call]
        shape = Shape(**json.loads(file.metadata()[""])["shape"])
        tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith("model.")}  # noqa: SIM118
    built = build(shape)
    built.load_state_dict(_under("model.", tensors))
    return built


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
