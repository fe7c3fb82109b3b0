"""Calls on the workers of a Ray cluster, a few more at a time than there are processors for."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from squeeze.errors import ClusterError
from squeeze.system import extras

__all__ = ["LOCAL", "SETTINGS", "Call", "Engine", "Lost", "Needs", "connect"]

K = TypeVar("K")
LOCAL = "local"
_AHEAD = 2.0  # calls for each processor: one runs, and one waits beside it
_SEEN_FOR = 5.0  # seconds between two looks at how large the cluster is
_GRACE = 10.0  # seconds that workers have to leave nothing half done
SETTINGS = {  # of the environment
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": "120",  # a busy machine takes longer than Ray waits otherwise
}


class Lost(ClusterError):
    """For a call whose worker or node has gone away."""


@dataclass(frozen=True)
class Needs:
    """Of one call: processors, GPUs, and bytes of memory, by which a cluster places it and grows. 0: not said."""

    cpus: float = 1
    gpus: float = 0
    memory: int = 0


@dataclass(frozen=True)
class Call(Generic[K]):
    """function(*arguments), on a worker. key: for the caller, to know it by; name: for Ray's dashboard."""

    key: K
    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    needs: Needs = Needs()


def connect(address: str) -> "Engine[Any]":
    """The workers of "local", a cluster of this machine's processors; of "ray://HOST:PORT"; or of "auto": of the
    cluster that this machine belongs to, and "local" where it belongs to none. Raises PackageError, or ClusterError
    where no cluster answers."""
    if address not in ("auto", LOCAL) and "://" not in address:
        raise ClusterError(f"{address!r} is no cluster: use auto, local or ray://HOST:PORT")
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with extras.explained():
        import ray
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "namespace": "squeeze"}
    if ray.is_initialized():
        return Engine(ray, ours=False)
    try:
        if address == "auto":
            try:
                ray.init(address="auto", **settings)
            except ConnectionError:
                address = LOCAL
        if address == LOCAL:
            ray.init(address=LOCAL, include_dashboard=False, **settings)
        elif address != "auto":
            ray.init(address=address, **settings)
    except Exception as error:  # Ray raises that itself
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ClusterError(f"the cluster {address} does not answer: {reason}") from None
    return Engine(ray)


class Engine(Generic[K]):
    """Runs calls, and gives their results as they come. ours: whether to leave the cluster in the end."""

    def __init__(self, ray: Any, ours: bool = True) -> None:
        self._ray, self._ours = ray, ours
        self._running: dict[Any, Call[K]] = {}
        self._seen, self._processors = 0.0, 1.0
        self._remote: dict[Callable[..., Any], Any] = {}

    @property
    def processors(self) -> float:
        """Of the whole cluster, which may grow and shrink."""
        if time.monotonic() - self._seen > _SEEN_FOR:
            self._seen = time.monotonic()
            self._processors = self._ray.cluster_resources().get("CPU", 0.0) or self._processors
        return self._processors

    def memory_to_ask_for(self, needed: int) -> int:
        """What a call says that it takes: 0 where no node that is there now has so much, so that it would wait."""
        nodes = [node["Resources"].get("memory", 0) for node in self._ray.nodes() if node["Alive"]]
        return needed if needed <= max(nodes, default=0) else 0

    def lacking(self, needs: Needs) -> str:
        """What calls of such needs would wait for, since no node that is there now has it; empty where one has."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if needs.gpus and not any(node.get("GPU", 0) >= needs.gpus for node in nodes):
            return "a GPU"
        if not any(node.get("CPU", 0) >= needs.cpus for node in nodes):
            return f"{needs.cpus:g} processors"
        return ""

    def at_once(self, needs: Needs) -> float:
        """How many calls of such needs run at the same time: by processors, or, where it asks for some, by GPUs."""
        if needs.gpus:
            return max(float(self._ray.cluster_resources().get("GPU", 0.0)) / needs.gpus, 1.0)
        return max(self.processors / needs.cpus, 1.0) if needs.cpus else self.processors

    def has_room(self, needs: Needs) -> bool:
        """Whether another call would find a processor soon."""
        taken = sum(call.needs.cpus for call in self._running.values())
        return taken + needs.cpus <= max(self.processors * _AHEAD, needs.cpus)

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def share(self, value: Any) -> Any:
        """What stands for a value among a call's arguments, so that it goes to each node once."""
        return self._ray.put(value)

    def submit(self, call: Call[K]) -> None:
        if call.function not in self._remote:
            self._remote[call.function] = self._ray.remote(call.function)
        needs = {"num_cpus": call.needs.cpus, "num_gpus": call.needs.gpus}
        if call.needs.memory:
            needs["memory"] = call.needs.memory
        options = {"name": call.name, "max_retries": 0, **needs}
        reference = self._remote[call.function].options(**options).remote(*call.arguments)
        self._running[reference] = call

    def next(self, timeout: float | None = None) -> tuple[Call[K], Any, BaseException | None] | None:
        """A call that has ended, its result, and instead of that Lost, or what the function raised; None where none has
        ended after so many seconds."""
        ended, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        if not ended:
            return None
        reference = ended[0]
        call = self._running.pop(reference)
        try:
            return call, self._ray.get(reference), None
        except self._ray.exceptions.RayTaskError as error:
            return call, None, error.cause if isinstance(error.cause, Exception) else error
        except self._ray.exceptions.RayError as error:
            return call, None, Lost(str(error).strip() or type(error).__name__)

    def close(self) -> None:
        """Stop what runs, and leave a cluster that was not joined before, or end a local one."""
        running = list(self._running)
        self._running.clear()
        for reference in running:
            self._ray.cancel(reference, force=False)
        if running:
            for reference in self._ray.wait(running, num_returns=len(running), timeout=_GRACE)[1]:
                self._ray.cancel(reference, force=True)
        if self._ours:
            self._ray.shutdown()
