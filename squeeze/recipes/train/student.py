"""A folder in a stored form as a trainable network with one block in memory.

Each block has a file with its values, Adam's moments, and the gradients of the current step.
"""

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.architectures import LAST_NORM
from squeeze.checkpoint.checkpoint import Checkpoint, View, disk_errors
from squeeze.checkpoint.stored import Expandable, StoredForm
from squeeze.engine.network import Network
from squeeze.integrations.loading import leaves_of, place_layers
from squeeze.recipes.train.trainer import adam

__all__ = ["Names", "Opening", "Student", "expanding", "norms"]

Names = Callable[[str], str]  # the checkpoint's name of a module, by its name in what is opened


@dataclass(frozen=True)
class Opening:
    """A way to train the weights of a stored form.

    `form` is the stored form whose layers `open` expects, or None if it replaces dense ones. `open` replaces layers of
    a block by trainable ones and returns their parameters by name. `close` returns the stored tensors of such a block.
    `lacks` is the error for a folder with nothing to train. `rate` is Adam's rate for each nat lost
    (distil.rate_for). `nbytes` is the memory of training for each weight of the original. `places` has the model's name
    of each of the checkpoint's modules that `close` stores by other tensors than a dense weight. `dense` returns a
    checkpoint without a form as floats. `block_rate` is Adam's rate while each block has a loss of its own, or None for
    the rate of the whole training.
    """

    form: StoredForm | None
    open: Callable[[nn.Module, Names], dict[str, nn.Parameter]]
    close: Callable[[nn.Module], Mapping[str, torch.Tensor]]
    lacks: str
    rate: float
    nbytes: float
    places: Mapping[str, str] = field(default_factory=dict)
    dense: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint
    block_rate: float | None = None


class Student(Network):
    """A network whose `units`, the blocks and the last norm, are trained from files.

    A loaded unit has the values of its file, and leaves its gradients there on release. `trained` counts the parameters
    after `begin`.
    """

    takes_stored = True

    def __init__(self, checkpoint: Checkpoint, opening: Opening, work: Path, device: str = "cpu") -> None:
        self.opening, self.work, self.step, self.trained = opening, work, 0, 0
        super().__init__(opening.dense(checkpoint), device)
        self.units = [*self.blocks, *(name for name in (LAST_NORM,) if name in self.outer())]
        self._bare = {name: deepcopy(self.module(name)) for name in self.blocks}
        self._opened: dict[str, dict[str, nn.Parameter]] = {}
        self._norms: dict[str, torch.Tensor] = {}  # of gradients

    @property
    def runs(self) -> bool:
        """True if everything that is trained in memory is trained here as well; norms before the blocks are not."""
        return not [name for name in self.outer() if "norm" in name and name not in self.units]

    def _instantiate(self) -> Any:
        model, form = super()._instantiate(), self.opening.form
        if form is None:
            return model
        infos = {name: self.checkpoint.info(name) for name in self.checkpoint.files}
        leaves = leaves_of(form, infos)
        left = leaves.keys() - place_layers(form, model, leaves)

        def weight(module: str, tensors: dict[str, torch.Tensor]) -> Expandable:
            return form.weight(module, {name.rpartition(".")[2]: tensor for name, tensor in tensors.items()})

        self.checkpoint = expanding(self.checkpoint, {name: list(leaves[name]) for name in left}, weight)
        return model

    def load(self, name: str, narrow: nn.Module | None = None) -> nn.Module:
        if name not in self.units:
            return super().load(name, narrow)
        if name in self._bare:
            self.model.set_submodule(name, deepcopy(self._bare[name]))
        module = super().load(name)
        if self.opening.form is not None:
            self.opening.form.settle(module)
        names: Names = lambda leaf: self.stored_name(f"{name}.{leaf}")  # noqa: E731
        self._opened[name] = self.opening.open(module, names) if name in self._bare else dict(module.named_parameters())
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
            owner, _, leaf = source.rpartition(".")
            key = f"{self.opening.places[owner]}.{leaf}" if owner in self.opening.places else keys.get(source, "")
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


def expanding(
    checkpoint: Checkpoint,
    modules: Mapping[str, list[str]],
    weight: Callable[[str, dict[str, torch.Tensor]], Expandable],
    turned: Collection[str] = (),
) -> Checkpoint:
    """Return a checkpoint with some modules made dense when they are loaded, such as experts that transformers merges.

    Args:
        checkpoint: The checkpoint.
        modules: Leaves of each such module, by its name.
        weight: Function of a module's name and its tensors by full name that returns the weight [O, I].
        turned: Modules that store their dense weight as [I, O].
    """
    views: dict[str, View] = {}
    for module, leaves in modules.items():
        names = [f"{module}.{leaf}" for leaf in leaves]

        def stored(module: str = module, names: list[str] = names) -> Any:
            return weight(module, checkpoint.load(names, strict=False))

        def read(index: int | None = None, stored: Callable[[], Any] = stored, turn: bool = module in turned) -> Any:
            dense: torch.Tensor = stored().dequantize()
            dense = dense.T.contiguous() if turn else dense
            return dense if index is None else dense[index]

        name, shape = f"{module}.weight", tuple(stored().shape)
        views[name] = View(name, "F32", shape[::-1] if module in turned else shape, read)
    hidden = {f"{module}.{leaf}" for module, leaves in modules.items() for leaf in leaves}
    return checkpoint.showing(views, hidden)


def norms(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of norms in a module by name."""
    return {name: value for name, value in module.named_parameters() if "norm" in name and value.ndim == 1}


def _put(tensors: Any, path: Path) -> None:
    with disk_errors(path):
        torch.save(tensors, path)
