"""A folder in a stored form as a trainable network with one block in memory.

Each block has a file with its values, Adam's moments, and the gradients of the current step.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.architectures import LAST_NORM
from squeeze.checkpoint.checkpoint import Checkpoint, View, disk_errors
from squeeze.checkpoint.stored import Leaves, StoredForm
from squeeze.engine.network import Network
from squeeze.recipes.train.trainer import adam

__all__ = ["Opening", "Student", "norms"]


@dataclass(frozen=True)
class Opening:
    """A way to train the weights of a stored form.

    `form` is the stored form. `open` replaces layers of a block by trainable ones and returns their parameters by name.
    `close` returns the stored tensors of such a block. `lacks` is the error for a folder with nothing to train. `rate`
    is Adam's rate for each nat lost (distil.rate_for). `nbytes` is the memory of training for each weight of the
    original.
    """

    form: StoredForm
    open: Callable[[nn.Module], dict[str, nn.Parameter]]
    close: Callable[[nn.Module], Mapping[str, torch.Tensor]]
    lacks: str
    rate: float
    nbytes: float


class Student(Network):
    """A network whose `units`, the blocks and the last norm, are trained from files.

    A loaded unit has the values of its file, and leaves its gradients there on release. `trained` counts the parameters
    after `begin`.
    """

    takes_stored = True

    def __init__(self, checkpoint: Checkpoint, opening: Opening, work: Path, device: str = "cpu") -> None:
        self.opening, self.work, self.step, self.trained = opening, work, 0, 0
        super().__init__(checkpoint, device)
        self.units = [*self.blocks, *(name for name in (LAST_NORM,) if name in self.outer())]
        self._bare = {name: deepcopy(self.module(name)) for name in self.blocks}
        self._opened: dict[str, dict[str, nn.Parameter]] = {}
        self._norms: dict[str, torch.Tensor] = {}  # of gradients

    @property
    def runs(self) -> bool:
        """True if everything that is trained in memory is trained here as well; norms before the blocks are not."""
        return not [name for name in self.outer() if "norm" in name and name not in self.units]

    def _instantiate(self) -> Any:
        from squeeze.integrations.loading import leaves_of, place_layers  # transformers takes seconds to import

        model = super()._instantiate()
        infos = {name: self.checkpoint.info(name) for name in self.checkpoint.files}
        leaves = leaves_of(self.opening.form, infos)
        left = leaves.keys() - place_layers(self.opening.form, model, leaves)
        self.checkpoint = _dense(self.checkpoint, self.opening.form, {name: leaves[name] for name in left})
        return model

    def load(self, name: str, narrow: nn.Module | None = None) -> nn.Module:
        if name not in self.units:
            return super().load(name, narrow)
        if name in self._bare:
            self.model.set_submodule(name, deepcopy(self._bare[name]))
        module = super().load(name)
        self.opening.form.settle(module)
        self._opened[name] = self.opening.open(module) if name in self._bare else dict(module.named_parameters())
        if self._file(name).is_file():
            values = torch.load(self._file(name), weights_only=True)["values"]
            for key, parameter in self._opened[name].items():
                parameter.data = values[key].to(self.device)
        for parameter in self._opened[name].values():
            parameter.requires_grad_(True)
        return module

    def release(self, name: str) -> None:
        if name in self.units:
            gradients = {
                key: parameter.grad
                for key, parameter in self._opened.pop(name, {}).items()
                if parameter.grad is not None
            }
            if gradients:
                self._norms |= {f"{name}.{key}": torch.linalg.vector_norm(one) for key, one in gradients.items()}
                _put({key: one.cpu() for key, one in gradients.items()}, self._gradients(name))
        if name in self._bare:
            self.model.set_submodule(name, self._bare[name])
        else:
            super().release(name)

    def begin(self) -> bool:
        """Write a file for every unit with its initial values, and return whether a block trains more than norms."""
        opened = False
        for name in self.units:
            module = self.load(name)
            values = {key: parameter.detach().cpu() for key, parameter in self._opened[name].items()}
            opened |= name in self._bare and len(values) > len(norms(module))
            self.trained += sum(value.numel() for value in values.values())
            _put({"values": values, "moments": {}}, self._file(name))
            self.release(name)
        return opened

    def move(self, rate: float) -> None:
        """Take a step of Adam, with the norm of all gradients clipped to 1, into new files."""
        order = [name for unit in self.units for name in self._norms if name.startswith(f"{unit}.")]
        names = sorted(order, key=lambda name: "norm" in name)  # in which they are summed in memory
        length = torch.linalg.vector_norm(torch.stack([self._norms[name] for name in names]))
        factor = torch.clamp(1.0 / (length + 1e-6), max=1.0)
        for name in self.units:
            state = torch.load(self._file(name), weights_only=True)
            if any(one.startswith(f"{name}.") for one in names):  # else there may be a file of a step that was stopped
                self._moved(state, torch.load(self._gradients(name), weights_only=True), factor, rate)
            _put(state, self._file(name, self.step + 1))
        self._norms.clear()

    def _moved(
        self, state: dict[str, Any], gradients: dict[str, torch.Tensor], factor: torch.Tensor, rate: float
    ) -> None:
        parameters = {key: nn.Parameter(state["values"][key].to(self.device)) for key in gradients}
        optimiser = adam(parameters.values(), rate)
        for key, parameter in parameters.items():
            parameter.grad = gradients[key].to(self.device).mul_(factor)
            if key in state["moments"]:
                optimiser.state[parameter] = {leaf: x.to(self.device) for leaf, x in state["moments"][key].items()}
        optimiser.step()
        for key, parameter in parameters.items():
            state["values"][key] = parameter.detach().cpu()
            state["moments"][key] = {leaf: x.cpu() for leaf, x in optimiser.state[parameter].items()}

    def forget(self, step: int) -> None:
        """Delete the files of a step."""
        for name in self.units:
            self._file(name, step).unlink(missing_ok=True)
            self._gradients(name).unlink(missing_ok=True)

    def trained_tensors(self) -> Callable[[str], torch.Tensor | None]:
        """Return a function of what a checkpoint's tensor has become, None if unchanged. One unit is in memory."""
        keys, last = {source: key for key, source in self.sources.items()}, ("", dict[str, torch.Tensor]())

        def value(source: str) -> torch.Tensor | None:
            nonlocal last
            key = keys.get(source, "")
            name = next((unit for unit in self.units if key.startswith(f"{unit}.")), "")
            if name and last[0] != name:
                module = self.load(name)
                closed = self.opening.close(module) if name in self._bare else dict(module.named_parameters())
                last = name, {leaf: x.detach().cpu() for leaf, x in closed.items()}
                self.release(name)
            return last[1].get(key.removeprefix(f"{name}.")) if name else None

        return value

    def _file(self, name: str, step: int | None = None) -> Path:
        return self.work / f"{name}.{self.step if step is None else step}.state"

    def _gradients(self, name: str) -> Path:
        return self.work / f"{name}.gradients"


def _dense(checkpoint: Checkpoint, form: StoredForm, modules: Mapping[str, Leaves]) -> Checkpoint:
    """Return a checkpoint with some modules of a form made dense, such as experts that transformers merges."""
    views: dict[str, View] = {}
    for module, leaves in modules.items():
        names = [f"{module}.{leaf}" for leaf in leaves]

        def stored(module: str = module, names: list[str] = names) -> Any:
            tensors = checkpoint.load(names, strict=False)
            return form.weight(module, {name.rpartition(".")[2]: tensor for name, tensor in tensors.items()})

        def read(index: int | None = None, stored: Callable[[], Any] = stored) -> torch.Tensor:
            weight: torch.Tensor = stored().dequantize()
            return weight if index is None else weight[index]

        name = f"{module}.weight"
        views[name] = View(name, "F32", tuple(stored().shape), read)
    hidden = {f"{module}.{leaf}" for module, leaves in modules.items() for leaf in leaves}
    return checkpoint.showing(views, hidden)


def norms(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of norms in a module by name."""
    return {name: value for name, value in module.named_parameters() if "norm" in name and value.ndim == 1}


def _put(tensors: Any, path: Path) -> None:
    with disk_errors(path):
        torch.save(tensors, path)
