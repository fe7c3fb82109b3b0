"""Calls on Ray's own workers: one of several nodes, one that is killed, and one that kills its worker each time."""

import os
import signal
from pathlib import Path

import pytest

import squeeze
from squeeze.cluster import engine as engines
from squeeze.cluster.engine import Call, Needs
from squeeze.cluster.operations import COMPRESS, File, Task
from squeeze.cluster.run import Run
from squeeze.errors import ClusterError
from squeeze.system.unchanged import stamp_of

os.environ.update(engines.SETTINGS)  # which Ray reads when it is imported
ray = pytest.importorskip("ray", reason="pip install 'squeeze-neural[cluster]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
OPTIONS = {"level": 1, "verify": True, "block_size": 4096, "threads": 1}


@pytest.fixture(scope="module")
def nodes():
    from ray.cluster_utils import Cluster

    quickly = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": quickly}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


def ends(number: int) -> None:
    """Kill the worker of this call."""
    os.kill(os.getpid(), signal.SIGKILL)


def fails(number: int) -> None:
    raise ValueError(f"no {number}")


def doubled(number: int) -> int:
    return 2 * number


def test_calls_return_results_and_errors(nodes):
    engine = engines.connect("auto")
    assert engine.processors == 2
    assert engine.has_room(Needs()) and not engine.is_busy
    for function in (doubled, fails, ends):
        engine.submit(Call(function.__name__, "a call", function, (21,)))
    found = {}
    while engine.is_busy:
        call, result, error = engine.next()
        found[call.key] = (result, type(error).__name__)
    assert found["doubled"] == (42, "NoneType")
    assert found["fails"] == (None, "ValueError")
    assert found["ends"] == (None, "Lost")


def test_workers_of_another_version_end_the_run(nodes, monkeypatch):
    monkeypatch.setattr(engines, "__version__", "9.9")  # of this process
    engine = engines.connect("auto")
    engine.submit(Call("doubled", "a call", doubled, (21,)))
    with pytest.raises(ClusterError, match=rf"squeeze {squeeze.__version__}, and this machine 9\.9: install the same"):
        engine.next()


def test_a_node_that_comes_takes_what_none_could(nodes):
    cluster, _ = nodes
    engine, said = engines.connect("auto"), []
    engine.patience, engine.warn = 60, said.append
    engine.submit(Call("much", "a call", doubled, (4,), Needs(1, 0, 1 << 45)))
    assert engine.next(1.0) is None and len(said) == 1
    third = cluster.add_node(num_cpus=1, memory=1 << 46)  # as an autoscaler does
    call, result, error = engine.next()
    assert (call.key, result, error) == ("much", 8, None) and len(said) == 1
    cluster.remove_node(third)


def test_where_none_comes_a_call_gets_the_largest_memory_or_ends_the_run(nodes):
    engine, said = engines.connect("auto"), []
    engine.patience, engine.warn = 0.5, said.append
    engine.submit(Call("much", "a call", doubled, (4,), Needs(1, 0, 1 << 47)))
    call, result, error = engine.next()
    assert (call.key, result, error) == ("much", 8, None) and "and may fail" in said[1]
    engine.submit(Call("gpu", "a call", doubled, (4,), Needs(1, 1)))
    with pytest.raises(ClusterError, match=r"1 processor and 1 GPU, and none came in 0\.5 s"):
        engine.next()
    engine._running.clear()


def test_files_survive_workers_and_a_node(nodes, in_folder):
    """Their paths are relative, and the nodes were started in another folder."""
    cluster, second = nodes
    files = []
    for number in range(12):
        path = Path(f"{number}")
        path.write_bytes(b"some bytes %d " % number * (3000 if number == 5 else 50))
        status = path.stat()
        files.append(File(path, status.st_size, stamp_of(status), Path(f"{number}.sqz")))
    going = Run(engines.connect("auto"), Task(COMPRESS, OPTIONS, ".mark"), None, Needs(), seconds=0.01)
    done = []
    for one in going.results(files):
        done.append(one)
        if len(done) == 1:
            cluster.remove_node(second, allow_graceful=False)
    assert not [one.error for one in done if one.error]
    assert len(done) == len(files)
    for file in files:
        expected = squeeze.compress(file.source.read_bytes(), 1, block_size=4096)
        assert file.target.read_bytes() == expected


def test_an_address_without_a_cluster_is_one_line():
    with pytest.raises(ClusterError, match="expected auto, local or"):
        engines.connect("nowhere")
