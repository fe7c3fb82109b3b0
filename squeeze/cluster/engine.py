"""Calls on the workers of a Ray cluster, with a few more in flight than there are processors.

A call says what it needs, so that an autoscaling cluster adds nodes for it. No public function of Ray tells whether a
cluster scales, and a call that no node can take waits forever. So a local cluster has a fixed size. In any other one
the engine waits `patience` seconds for a node; then calls that lack only memory request less, and others are an error.
"""

import os
import socket
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from squeeze.errors import ClusterError
from squeeze.system import extras
from squeeze.version import __version__

__all__ = ["LOCAL", "PATIENCE", "PROCESS", "SETTINGS", "Call", "Engine", "Lost", "Needs", "connect"]

K = TypeVar("K")
AUTO, LOCAL = "auto", "local"
_CLIENT, _CLIENT_PORT = "ray://", 10001
_ANSWERS = 5.0  # seconds that a cluster has to answer
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, 3.4
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # an empty frame of this type, 4, with which each side begins
_AHEAD = 2.0  # calls for each processor: one runs, and one waits
_SEEN_FOR = 5.0  # seconds between two queries of the cluster's size
PATIENCE = 600.0  # seconds to wait for a large enough node: cloud machines take minutes to start
PROCESS = 1 << 28  # bytes of a worker without its call: Python, Ray, and compiled code
_GRACE = 10.0  # seconds for workers to finish what they write
SETTINGS = {  # environment variables
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": "120",  # a busy machine takes longer than Ray waits otherwise
}


class Lost(ClusterError):
    """The error of a call whose worker or node was lost."""


@dataclass(frozen=True)
class Needs:
    """The processors, GPUs and bytes of memory that a call needs, by which a cluster places it and scales. 0 is
    unspecified.
    """

    cpus: float = 1
    gpus: float = 0
    memory: int = 0

    def __str__(self) -> str:
        words = [f"{self.cpus:g} processor{'s' * (self.cpus != 1)}"] if self.cpus else []
        words += [f"{self.gpus:g} GPU{'s' * (self.gpus != 1)}"] if self.gpus else []
        words += [f"{self.memory / 1e9:.1f} GB of memory"] if self.memory else []
        return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))

    def fit(self, resources: dict[str, float]) -> bool:
        """Return whether a node with these resources can take the call."""
        named = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return all(resources.get(name, 0) >= count for name, count in named.items())


@dataclass(frozen=True)
class Call(Generic[K]):
    """A call of a module's function on a worker.

    Attributes:
        key: The caller's identifier of the call.
        name: The name in Ray's dashboard.
        function: The function, which a module must have.
        arguments: Its arguments.
        needs: The resources.
    """

    key: K
    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    needs: Needs = Needs()


def connect(address: str) -> "Engine[Any]":
    """Connect to the workers of a cluster.

    Args:
        address: "local" for this machine's processors, "ray://HOST:PORT", or "auto": the cluster that RAY_ADDRESS names
            or
        that this machine belongs to, otherwise "local".

    Raises:
        PackageError: Ray is not installed.
        ClusterError: No cluster answers.
    """
    if address not in (AUTO, LOCAL) and not address.startswith(_CLIENT):
        raise ClusterError(f"expected auto, local or ray://HOST:PORT, got {address!r}")
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with extras.explained():
        import ray
    if ray.is_initialized():
        return Engine(ray, disconnects=False)
    named = os.environ.get("RAY_ADDRESS") or AUTO if address == AUTO else address
    noted = _noted() if named == AUTO else ""
    try:
        if noted or named not in (AUTO, LOCAL):
            _check_answers(noted or named)
        with warnings.catch_warnings(action="ignore"):  # Ray warns as well as raising an error
            return _joined(ray, named)
    except Exception as error:  # Ray raises that itself
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        hint = f" ({_note()} names it; `ray stop` forgets it)" if noted else ""
        raise ClusterError(f"the cluster {noted or named} does not answer: {reason}{hint}") from None


def _note() -> Path:
    """Return the file in which `ray start` records the address of this machine's cluster."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(folder, "ray", "ray_current_cluster")


def _noted() -> str:
    """Return the recorded address, or "". The record survives a reboot, after which Ray would wait there for
    minutes.
    """
    try:
        return _note().read_text().strip()
    except (OSError, ValueError):
        return ""


def _joined(ray: Any, address: str) -> "Engine[Any]":
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "namespace": "squeeze"}
    if address != LOCAL:
        with suppress(*[ConnectionError] * (address == AUTO)):
            ray.init(address=address, **settings)
            return Engine(ray)
    ray.init(address=LOCAL, include_dashboard=False, **settings)
    return Engine(ray, grows=False)


def _check_answers(address: str) -> None:
    """Raise OSError if no gRPC server answers at HOST:PORT, and ValueError if the address is invalid.

    Ray itself would try for minutes and print about it.
    """
    place = urlsplit(address if "://" in address else f"//{address}")
    port = place.port or (_CLIENT_PORT if address.startswith(_CLIENT) else None)
    if not place.hostname or not port:
        raise ValueError("the address is not HOST:PORT")
    with socket.create_connection((place.hostname, port), _ANSWERS) as opened:
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            opened.sendall(_HTTP2 + _SETTINGS)
            if opened.recv(len(_SETTINGS))[3:4] != _SETTINGS[3:4]:
                raise ConnectionError("the server there is not Ray")


def _in_this_folder(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function to be run in the current folder of this process, if a worker sees that folder.

    So relative paths mean the same files. A worker with another version of squeeze, or without it, raises ImportError.
    """
    folder, our_version, place = Path.cwd(), __version__, (function.__module__, function.__qualname__)

    def run(*arguments: Any) -> Any:  # pickled by value; the rest of squeeze is pickled by name
        their_version = import_module("squeeze.version").__version__ if find_spec("squeeze") else ""
        if their_version != our_version:
            has = (
                f"squeeze {their_version}, and this machine {our_version}"
                if their_version
                else f"no squeeze, and this machine {our_version}"
            )
            raise ImportError(
                f"{os.uname().nodename} of the cluster has {has}: install the same on all", name="squeeze"
            )
        with suppress(OSError):
            os.chdir(folder)
        return getattr(import_module(place[0]), place[1])(*arguments)

    return run


class Engine(Generic[K]):
    """A runner of calls that yields results as they come.

    Args:
        disconnects: Whether to disconnect from the cluster at the end.
        grows: Whether nodes may be added.
        patience: Seconds to wait for a node.
        warn: Called with a sentence about what the cluster lacks.
    """

    def __init__(self, ray: Any, disconnects: bool = True, grows: bool = True) -> None:
        self._ray, self._disconnects, self._grows = ray, disconnects, grows
        self.patience = PATIENCE
        self.warn: Callable[[str], None] = warnings.warn
        self._running: dict[Any, Call[K]] = {}
        self._resources_at, self._resources = 0.0, dict[str, float]()
        self._remote: dict[Callable[..., Any], Any] = {}
        self._requests: dict[Needs, Needs] = {}  # the resources that calls with these needs request from Ray
        self._missing_since: dict[Needs, float] = {}  # the time since which no node has these resources
        self._looked = 0.0

    @property
    def processors(self) -> float:
        """The number of processors of the whole cluster, which may change."""
        return self._total_of("CPU") or 1.0

    def _total_of(self, name: str) -> float:
        if time.monotonic() - self._resources_at > _SEEN_FOR:
            self._resources_at, self._resources = time.monotonic(), self._ray.cluster_resources()
        return float(self._resources.get(name, 0.0))

    def at_once(self, needs: Needs) -> float:
        """Return how many calls with these needs run at the same time: by GPUs if they need some, otherwise by
        processors.
        """
        if needs.gpus:
            return max(self._total_of("GPU") / needs.gpus, 1.0)
        return max(self.processors / needs.cpus, 1.0) if needs.cpus else self.processors

    def has_room(self, needs: Needs) -> bool:
        """Return whether another call would soon get a processor."""
        taken = sum(call.needs.cpus for call in self._running.values())
        return taken + needs.cpus <= max(self.processors * _AHEAD, needs.cpus)

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def share(self, value: Any) -> Any:
        """Put a value into the object store and return a reference for arguments, so that each node gets it once."""
        return self._ray.put(value)

    def submit(self, call: Call[K]) -> None:
        """Submit a call. Raise ClusterError if no node can take it and no node will be added."""
        if call.needs not in self._requests:
            self._requests[call.needs] = call.needs
            self._look(call.needs)
        if call.function not in self._remote:
            self._remote[call.function] = self._ray.remote(_in_this_folder(call.function))
        request = self._requests[call.needs]
        needs = {"num_cpus": request.cpus, "num_gpus": request.gpus}
        if request.memory:
            needs["memory"] = request.memory
        options = {"name": call.name, "max_retries": 0, **needs}
        reference = self._remote[call.function].options(**options).remote(*call.arguments)
        self._running[reference] = call

    def _look(self, needs: Needs) -> None:
        """Return whether a node can take calls with these needs.

        If no node came in time, less memory is requested. Raises ClusterError if anything but memory is missing then.
        """
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        request, now = self._requests[needs], time.monotonic()
        if any(request.fit(node) for node in nodes):
            self._missing_since.pop(needs, None)
            return
        lacking = f"no node of the cluster has {request}"
        if self._grows and now - self._missing_since.get(needs, now) < self.patience:
            if needs not in self._missing_since:
                self.warn(f"{lacking}; waiting up to {self.patience:g} s for one")
            self._missing_since.setdefault(needs, now)
            return
        came = f", and none came in {self.patience:g} s" if self._grows else ""
        rest = [node for node in nodes if replace(request, memory=0).fit(node)]
        if not rest:
            raise ClusterError(lacking + came)
        most = int(max(node.get("memory", 0) for node in rest))
        self._requests[needs] = replace(request, memory=most)
        self.warn(f"{lacking}{came}; a task gets all memory of the largest, {most / 1e9:.1f} GB, and may fail")
        self._missing_since.pop(needs, None)
        for reference in [reference for reference, call in self._running.items() if call.needs == needs]:
            self._ray.cancel(reference, force=False)
            self.submit(self._running.pop(reference))

    def next(self, timeout: float | None = None) -> tuple[Call[K], Any, BaseException | None] | None:
        """Wait for the next call that ends.

        Args:
            timeout: Seconds to wait, or None for no limit.

        Returns:
            The call, its result, and its exception (Lost, or what the function raised); or None after `timeout`
            seconds.

        Raises:
            ClusterError: Calls wait for a node that does not come, or workers have another version of squeeze.
        """
        until = None if timeout is None else time.monotonic() + timeout
        ended: list[Any] = []
        while not ended:
            self._look_again()
            pause = min(_SEEN_FOR, self.patience or _SEEN_FOR)
            pause = pause if until is None else min(pause, max(until - time.monotonic(), 0.0))
            ended, _ = self._ray.wait(list(self._running), num_returns=1, timeout=pause)
            if not ended and until is not None and time.monotonic() >= until:
                return None
        reference = ended[0]
        call = self._running.pop(reference)
        try:
            return call, self._ray.get(reference), None
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ImportError) and error.cause.name == "squeeze":
                raise ClusterError(str(error.cause)) from None
            return call, None, error.cause if isinstance(error.cause, Exception) else error
        except self._ray.exceptions.RayError as error:
            return call, None, Lost(str(error).strip() or type(error).__name__)

    def _look_again(self) -> None:
        """Check the needs of all calls again, since nodes may be gone."""
        if time.monotonic() - self._looked >= min(_SEEN_FOR, self.patience):
            self._looked = time.monotonic()
            for needs in {call.needs for call in self._running.values()}:
                self._look(needs)

    def close(self) -> None:
        """Cancel running calls, and disconnect from the cluster or stop a local one."""
        running = list(self._running)
        self._running.clear()
        for reference in running:
            self._ray.cancel(reference, force=False)
        if running:
            for reference in self._ray.wait(running, num_returns=len(running), timeout=_GRACE)[1]:
                self._ray.cancel(reference, force=True)
        if self._disconnects:
            self._ray.shutdown()
