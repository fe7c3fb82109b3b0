"""A weight transfer engine for vLLM that follows a stream of differences.

vLLM's `WeightTransferEngine` brings the weights of a trainer to the workers of an inference server. This one reads
messages from a folder, a URL of fsspec, or a server of `squeeze.packing.deltas.serve`. If the stream has the names of
the running model's parameters, patches change these in place. If it has the names of a checkpoint, a copy of that in
the memory of the CPU follows the stream. Changed tensors are then passed to the model's `load_weights`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from squeeze.errors import SqueezeError
from squeeze.packing.deltas import Folder, Receiver, fetch
from squeeze.packing.dense import dense

__all__ = ["ENGINE", "InitInfo", "UpdateInfo", "WeightStream", "engine_class", "register"]

ENGINE = "squeeze"  # the name of the backend in vLLM's WeightTransferConfig


class Model(Protocol):
    """The part of a model of vLLM that an update uses."""

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the parameters by name."""

    def load_weights(self, weights: Any) -> Any:
        """Take tensors of a checkpoint by name."""


@dataclass
class InitInfo:
    """The source of messages, a folder or URL.

    checkpoint: the folder whose tensors the stream has, or "" for the model's parameters.
    """

    source: str
    checkpoint: str = ""
    threads: int = 1


@dataclass
class UpdateInfo:
    """An update. sequence: the number of the message to reach, or None for the last one."""

    sequence: int | None = None


class WeightStream:
    """The weights of a model of vLLM that follow a stream."""

    def __init__(self, model: Model, info: InitInfo):
        """Take a model whose weights change, and where messages come from."""
        self._model, self._info = model, info
        source: Iterable[tuple[str, torch.Tensor]] = model.named_parameters()
        if info.checkpoint:
            source = dense(info.checkpoint, threads=info.threads).stream()
        self._weights = {name: tensor.detach() for name, tensor in source}
        self._receiver = Receiver(self._weights, threads=info.threads)
        self._changed = set[str]()  # tensors of the copy that the model does not have yet
        self._receiver.on_change = self._changed.update

    @property
    def sequence(self) -> int | None:
        """The number of the last message."""
        return self._receiver.sequence

    def update(self, sequence: int | None = None) -> set[str]:
        """Apply the messages that are missing; return the names of tensors that changed since the last successful call.

        sequence: the number that is expected at least, or None. Raises SqueezeError if the source does not have it.
        """
        source = self._info.source
        if source.startswith(("http://", "https://")):
            fetch(source, self._receiver)
        else:
            Folder(source).update(self._receiver)
        changed = set(self._changed)
        if self._info.checkpoint and changed:
            self._model.load_weights((name, self._weights[name]) for name in sorted(changed))
        self._changed.clear()
        if sequence is not None and (self.sequence is None or self.sequence < sequence):
            raise SqueezeError(f"{source}: expected message {sequence}, the last one is {self.sequence}")
        return changed


def engine_class(base: type[Any] | None = None) -> type[Any]:
    """Return a WeightTransferEngine. base: vLLM's class, which is imported by default."""
    if base is None:
        from vllm.distributed.weight_transfer.base import WeightTransferEngine

        base = WeightTransferEngine

    class SqueezeWeightTransferEngine(base):  # type: ignore[misc, valid-type]
        """An engine that follows a stream of squeeze. Weights change in `update_weights`, at once."""

        init_info_cls, update_info_cls = InitInfo, UpdateInfo

        def init_transfer_engine(self, init_info: InitInfo) -> None:
            self.weights = WeightStream(self.model, init_info)

        def start_weight_update(self, *arguments: Any, **options: Any) -> None:
            pass

        def finish_weight_update(self, *arguments: Any, **options: Any) -> None:
            pass

        def receive_weights(self, update_info: UpdateInfo) -> None:
            if not hasattr(self, "weights"):
                raise SqueezeError("the stream has no source yet: call init_weight_transfer_engine first")
            self.weights.update(update_info.sequence)

        def shutdown(self) -> None:
            pass

        @staticmethod
        def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
            raise SqueezeError("a trainer sends weights by squeeze.packing.deltas.Stream and Folder or serve")

    return SqueezeWeightTransferEngine


def register() -> None:
    """Register the engine with vLLM under the name "squeeze"."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    WeightTransferEngineFactory.register_engine(ENGINE, engine_class())
