"""Blocks calibrated and compressed by calls of an engine: the bytes that one process writes, whoever does what, and
whatever is lost."""

from pathlib import Path

import pytest
import torch

import squeeze
from squeeze.cluster import engine as engines
from squeeze.cluster.calibrating import ClusterWorkers
from squeeze.cluster.run import ATTEMPTS
from squeeze.engine import sharding
from squeeze.errors import ClusterError, SqueezeError
from tests.makers import networks
from tests.makers.inline import Inline

pytest.importorskip("transformers", reason="transformers is not installed")
TOKENS = torch.randint(0, 300, (10, 24), generator=torch.Generator().manual_seed(2))
QUANTIZE, PRUNE = squeeze.quantize, squeeze.prune


class Backwards(Inline):
    """End the last of the waiting calls first."""

    def next(self, timeout=None):
        self.waiting.rotate(1)
        return super().next(timeout)


@pytest.fixture(autouse=True)
def in_shards(monkeypatch):
    """Return shards of three sequences each; the last has one."""
    monkeypatch.setattr(sharding, "_TOKENS", 3 * 24)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = networks.save(kind, tmp_path_factory.mktemp(kind) / "model")
        return made[kind]

    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Compare all files except the report and its page, which contain times."""
    told = ("compression_report.json", "README.md")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in told}


@pytest.mark.parametrize(
    ("kind", "operation", "options"),
    [
        ("llama", QUANTIZE, {"method": "gptq", "bits": 4, "group_size": 32, "format": "squeeze"}),
        ("llama", QUANTIZE, {"method": "gptq", "scheme": "fp8", "correction": 0.0}),  # with ranges of inputs
        ("mixtral", QUANTIZE, {"method": "gptq", "bits": 4, "group_size": 32, "format": "dense"}),
        ("gpt2", PRUNE, {"method": "wanda", "pattern": "2:4", "dense": True}),
    ],
)
def test_the_bytes_are_those_of_one_process(tmp_path, folder_of, kind, operation, options):
    engine = Backwards(room=3)
    given = {"calibration": TOKENS, **options}
    report = operation(folder_of(kind), out=tmp_path / "one", **given)
    operation(folder_of(kind), out=tmp_path / "two", workers=ClusterWorkers(engine), **given)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    assert engine.calls > 2 * len(report.layers) and engine.most == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_calls_whose_worker_is_lost_are_made_again(tmp_path, folder_of):
    lost = []

    def breaks(call):
        if call.key == 1 and len(lost) < 6 and lost.count(call.name) < ATTEMPTS - 1:
            lost.append(call.name)
            raise RuntimeError("killed")

    given = {"method": "gptq", "bits": 4, "group_size": 32, "calibration": TOKENS}
    QUANTIZE(folder_of("llama"), out=tmp_path / "one", **given)
    QUANTIZE(folder_of("llama"), out=tmp_path / "two", workers=ClusterWorkers(Inline(breaks=breaks)), **given)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    assert lost[0] == "original model.layers.0, part 2" and lost[3:] == ["statistics model.layers.0, part 2"] * 3


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (RuntimeError("killed\nby the kernel"), ClusterError, f"a worker was lost, {ATTEMPTS} times: killed"),
        (SqueezeError("cannot be"), SqueezeError, "cannot be"),
    ],
)
def test_what_goes_on_failing_ends_the_run(tmp_path, folder_of, raised, kind, message):
    class Failing(Inline):
        def next(self, timeout=None):
            return self.waiting.popleft(), None, raised

    with pytest.raises(kind, match=message):
        QUANTIZE(folder_of("llama"), out=tmp_path / "out", workers=ClusterWorkers(Failing()), calibration=TOKENS)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_two_workers_of_ray(tmp_path, folder_of, monkeypatch):
    for name, value in engines.SETTINGS.items():  # which Ray reads when it is imported
        monkeypatch.setenv(name, value)
    ray = pytest.importorskip("ray", reason="pip install 'squeeze-neural[cluster]'")
    given = {"method": "gptq", "bits": 4, "group_size": 32, "calibration": TOKENS}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        QUANTIZE(folder_of("llama"), out=tmp_path / "one", **given)
        QUANTIZE(folder_of("llama"), out=tmp_path / "two", workers=ClusterWorkers(engines.connect("auto")), **given)
    finally:
        ray.shutdown()
        torch.set_num_threads(before)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
