"""What an engine tells of a cluster, and how it leaves one, beside a Ray that is none."""

from types import SimpleNamespace

import pytest

from squeeze.cluster.engine import Call, Engine, Needs


@pytest.mark.parametrize(
    ("needs", "calls"), [(Needs(), 64), (Needs(cpus=8), 8), (Needs(cpus=8, gpus=1), 4), (Needs(cpus=100), 1)]
)
def test_how_many_calls_run_at_a_time(needs, calls):
    cluster: Engine[str] = Engine(SimpleNamespace(cluster_resources=lambda: {"CPU": 64.0, "GPU": 4.0}))
    assert cluster.at_once(needs) == calls


def test_what_no_node_has_is_named():
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    cluster: Engine[str] = Engine(SimpleNamespace(nodes=lambda: nodes))
    needs = (Needs(4), Needs(2, 1), Needs(8), Needs(1, 2))
    assert [cluster.lacking(one) for one in needs] == ["", "", "8 processors", "a GPU"]


@pytest.mark.parametrize("ours", [True, False])
def test_what_runs_may_end_by_itself_before_it_is_killed(ours):
    said = []
    fake = SimpleNamespace(
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
