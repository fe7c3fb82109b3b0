"""An engine's messages about a cluster, and how it leaves one, with a fake Ray."""

import pickle
import re
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

import squeeze
from squeeze.cluster.engine import Call, Engine, Needs, connect
from squeeze.errors import ClusterError


@pytest.mark.parametrize(
    ("needs", "calls"), [(Needs(), 64), (Needs(cpus=8), 8), (Needs(cpus=8, gpus=1), 4), (Needs(cpus=100), 1)]
)
def test_how_many_calls_run_at_a_time(needs, calls):
    cluster: Engine[str] = Engine(SimpleNamespace(cluster_resources=lambda: {"CPU": 64.0, "GPU": 4.0}))
    assert cluster.at_once(needs) == calls


class Nodes:
    """A fake of the parts of Ray that an engine uses. A call is a list of what it requested."""

    GB = 1_000_000_000.0

    def __init__(self, *has: dict[str, float]):
        self.has, self.started, self.cancelled, self.ended = list(has), [], [], []

    def nodes(self):
        gone = {"CPU": 64.0, "GPU": 8.0, "memory": 999 * self.GB}
        return [{"Alive": True, "Resources": one} for one in self.has] + [{"Alive": False, "Resources": gone}]

    def remote(self, function):
        def options(name, max_retries, **asked):
            return SimpleNamespace(remote=lambda *arguments: self.started.append(asked) or len(self.started) - 1)

        return SimpleNamespace(options=options)

    def cancel(self, reference, force):
        self.cancelled.append(reference)

    def wait(self, running, num_returns, timeout):
        """End a call if a node can take it."""
        asked = {one: self.started[one] for one in running}
        fits = [
            one
            for one, need in asked.items()
            if any(
                node.get("CPU", 0) >= need["num_cpus"]
                and node.get("GPU", 0) >= need["num_gpus"]
                and node.get("memory", 0) >= need.get("memory", 0)
                for node in self.has
            )
        ]
        time.sleep(0 if fits else timeout)
        return fits[:1], []

    def get(self, reference):
        return self.started[reference]


def engine_of(nodes: Nodes, **options: Any) -> tuple[Engine[str], list[str]]:
    made: Engine[str] = Engine(nodes, **options)
    said: list[str] = []
    made.patience, made.warn = 0.05, said.append
    return made, said


SMALL, LARGE = {"CPU": 2.0, "memory": 4 * Nodes.GB}, {"CPU": 1.0, "GPU": 1.0, "memory": 9 * Nodes.GB}
MUCH = Needs(1, 0, 30_000_000_000)


def test_a_call_asks_for_what_it_needs():
    engine, said = engine_of(nodes := Nodes(SMALL, LARGE))
    for number, needs in enumerate((Needs(), Needs(2, 0, 4 * 10**9), Needs(1, 1, 5 * 10**9))):
        engine.submit(Call(str(number), "a call", print, (), needs))
    assert nodes.started == [
        {"num_cpus": 1, "num_gpus": 0},
        {"num_cpus": 2, "num_gpus": 0, "memory": 4 * 10**9},
        {"num_cpus": 1, "num_gpus": 1, "memory": 5 * 10**9},
    ]
    assert not said


def test_a_local_cluster_gives_what_memory_it_has_at_once():
    engine, said = engine_of(nodes := Nodes(SMALL, LARGE), grows=False)
    for _ in range(2):
        engine.submit(Call("a", "a call", print, (), MUCH))
    assert [one["memory"] for one in nodes.started] == [9 * 10**9] * 2
    lacking = "no node of the cluster has 1 processor and 30.0 GB of memory"
    assert said == [f"{lacking}; a task gets all memory of the largest, 9.0 GB, and may fail"]


def test_a_growing_cluster_is_asked_and_waited_for():
    engine, said = engine_of(nodes := Nodes(SMALL))
    for key in ("a", "b"):
        engine.submit(Call(key, "a call", print, (), MUCH))
    assert [one["memory"] for one in nodes.started] == [30 * 10**9] * 2 and not nodes.cancelled
    assert engine.next(0.01) is None
    nodes.has.append({"CPU": 8.0, "memory": 64 * Nodes.GB})
    ended = engine.next()
    assert ended and ended[0].key == "a" and ended[1]["memory"] == 30 * 10**9
    assert said == ["no node of the cluster has 1 processor and 30.0 GB of memory; waiting up to 0.05 s for one"]


def test_where_no_node_comes_calls_get_the_largest_memory_that_there_is():
    engine, said = engine_of(nodes := Nodes(SMALL))
    engine.submit(Call("a", "a call", print, (), MUCH))
    ended = engine.next()
    assert ended and ended[0].key == "a" and ended[1]["memory"] == 4 * 10**9
    assert nodes.cancelled == [0] and not engine.is_busy
    assert said[1:] == [
        "no node of the cluster has 1 processor and 30.0 GB of memory, and none came in 0.05 s; "
        "a task gets all memory of the largest, 4.0 GB, and may fail"
    ]


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (Needs(8), "8 processors"),
        (Needs(1, 1), "1 processor and 1 GPU"),
        (Needs(2, 2, 3 * 10**9), "2 processors, 2 GPUs and 3.0 GB of memory"),
    ],
)
def test_where_more_than_memory_is_lacking_the_run_ends(needs, words):
    engine, _ = engine_of(Nodes(SMALL), grows=False)
    with pytest.raises(ClusterError, match=f"^no node of the cluster has {words}$"):
        engine.submit(Call("a", "a call", print, (), needs))
    engine, said = engine_of(Nodes(SMALL))
    engine.submit(Call("a", "a call", print, (), needs))
    with pytest.raises(ClusterError, match=rf"has {words}, and none came in 0\.05 s"):
        engine.next()
    assert len(said) == 1


def test_a_node_that_goes_is_waited_for_too():
    engine, said = engine_of(nodes := Nodes(SMALL, LARGE))
    engine.submit(Call("a", "a call", print, (), Needs(1, 1)))
    nodes.has.remove(LARGE)
    with pytest.raises(ClusterError, match="1 processor and 1 GPU, and none came"):
        engine.next()
    assert len(said) == 1


class Fake:
    """A fake of the parts of Ray that a connection uses, which records where they were asked for."""

    def __init__(self, monkeypatch, fails=()):
        self.asked, self.fails = [], fails
        monkeypatch.setitem(sys.modules, "ray", self)

    def is_initialized(self):
        return False

    def init(self, address, **settings):
        self.asked.append(address)
        warnings.warn("a page of advice", stacklevel=1)
        if address in self.fails:
            raise ConnectionError("it refuses\nall")


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """HOST:PORT of what says this to each who comes; None: closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with suppress(OSError):
                while True:
                    opened, _ = server.accept()
                    with opened:
                        if answer is not None:
                            opened.recv(100)
                            opened.sendall(answer)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield "{}:{}".format(*server.getsockname())
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


GRPC = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]) + bytes(6)  # the settings of a server


@pytest.fixture(autouse=True)
def note(monkeypatch, tmp_path):
    """Return a path for Ray's record of this machine's cluster, which does not exist."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return tmp_path / "ray" / "ray_current_cluster"


def test_a_cluster_is_looked_for(monkeypatch):
    ray = Fake(monkeypatch, fails=["auto"])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert not connect("auto")._grows
    with listening(GRPC) as address:
        assert connect(f"ray://{address}")._grows
        for named in (address, f"ray://{address}"):
            monkeypatch.setenv("RAY_ADDRESS", named)
            assert connect("auto")._grows
    assert ray.asked == ["auto", "local", f"ray://{address}", address, f"ray://{address}"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [(None, "Connection reset by peer|the server there is not Ray"), (b"HTTP/1.1 400 Bad Request", "is not Ray")],
)
def test_what_does_not_answer_as_a_cluster_does_is_one_line_at_once(monkeypatch, answer, said):
    """Ray would try for minutes."""
    ray = Fake(monkeypatch)
    with listening(answer) as address:
        for named in (f"ray://{address}", address):
            monkeypatch.setenv("RAY_ADDRESS", named)
            with pytest.raises(ClusterError, match=rf"^the cluster {named} does not answer: .*({said})$"):
                connect("auto")
    for named, reason in (
        (address, "refused"),
        ("ray://", "HOST:PORT"),
        ("a:b", "could not be cast"),
        ("a", "HOST:PORT"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", named)
        with pytest.raises(ClusterError, match=f"the cluster {named} does not answer: .*{reason}"):
            connect("auto")
    assert not ray.asked


def test_a_cluster_of_this_machine_that_is_gone_is_one_line_at_once(monkeypatch, note):
    """Ray would try for minutes, and then end the process."""
    ray = Fake(monkeypatch)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    note.parent.mkdir()
    with listening(GRPC) as address:
        note.write_text(f"{address}\n")
        assert connect("auto")._grows and ray.asked == ["auto"]
    said = rf"^the cluster {address} does not answer: .*refused \({note} names it; `ray stop` forgets it\)$"
    with pytest.raises(ClusterError, match=said):
        connect("auto")
    assert ray.asked == ["auto"]
    assert not connect("local")._grows
    note.write_bytes(b"\xff")
    assert connect("auto")._grows


def test_what_hangs_is_one_line(monkeypatch):
    Fake(monkeypatch)
    monkeypatch.setattr("squeeze.cluster.engine._ANSWERS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "ray://{}:{}".format(*server.getsockname())
        with pytest.raises(ClusterError, match=rf"^the cluster {address} does not answer: timed out$"):
            connect(address)


def test_a_cluster_that_refuses_is_one_line(monkeypatch):
    with listening(GRPC) as address:
        Fake(monkeypatch, fails=[address])
        monkeypatch.setenv("RAY_ADDRESS", address)
        with warnings.catch_warnings(record=True) as advice:
            with pytest.raises(ClusterError, match=rf"^the cluster {address} does not answer: it refuses$"):
                connect("auto")
            assert not advice
    with pytest.raises(ClusterError, match="expected auto, local or ray://HOST:PORT, got"):
        connect("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ("9.9", "of the cluster has squeeze 9.9, and this machine {ours}: install the same on all"),
        ("", "of the cluster has no squeeze, and this machine {ours}: install the same on all"),
    ],
)
def test_workers_of_another_version_end_the_run(monkeypatch, theirs, said):
    class TaskError(Exception):
        def __init__(self, cause):
            self.cause = pickle.loads(pickle.dumps(cause))

    def get(run):
        with monkeypatch.context() as there:
            there.setattr("squeeze.version.__version__", theirs)
            if not theirs:
                there.setattr("squeeze.cluster.engine.find_spec", lambda name: None)
            try:
                return run()
            except ImportError as error:
                raise TaskError(error) from None

    fake = SimpleNamespace(
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 1.0}}],
        remote=lambda run: SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=lambda *given: partial(run, *given))
        ),
        wait=lambda running, num_returns, timeout: (running, []),
        get=get,
        exceptions=SimpleNamespace(RayTaskError=TaskError, RayError=TaskError),
    )
    cluster: Engine[str] = Engine(fake)
    cluster.submit(Call("a", "a call", len, ("abc",)))
    with pytest.raises(ClusterError, match=f" {re.escape(said.format(ours=squeeze.__version__))}$"):
        cluster.next()
    monkeypatch.setattr(fake, "get", lambda run: run())
    cluster.submit(Call("a", "a call", len, ("abc",)))
    assert cluster.next()[1:] == (3, None)


@pytest.mark.parametrize("ours", [True, False])
def test_what_runs_may_end_by_itself_before_it_is_killed(ours):
    said = []
    fake = SimpleNamespace(
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 1.0}}],
        remote=lambda function: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda number: number)),
        cancel=lambda reference, force: said.append((reference, force)),
        wait=lambda running, num_returns, timeout: ([1], [2]),
        shutdown=lambda: said.append("shutdown"),
    )
    cluster: Engine[str] = Engine(fake, ours)
    for number in (1, 2):
        cluster.submit(Call(str(number), "a call", print, (number,)))
    cluster.close()
    assert said == [(1, False), (2, False), (2, True), *["shutdown"] * ours]
    assert not cluster.is_busy
