"""Commands on models by Ray's own workers: what they write and say is what one process does."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import squeeze
from squeeze.cluster.engine import SETTINGS
from tests.makers import tiny_models
from tests.makers.checkpoints import content, model_folder
from tests.makers.command import call, run

os.environ.update(SETTINGS)  # which Ray reads when it is imported
ray = pytest.importorskip("ray", reason="pip install 'squeeze-neural[cluster]'")
pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("cluster", "in_folder")]  # Ray's own
CLUSTER = ("-q", "--cluster", "local")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Start a cluster that all commands share, since starting one takes as long as all tests here."""
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture
def model(in_folder: None) -> Path:
    return tiny_models.write_folder(Path("model"), tiny_models.byte_level(), vocab_size=400)


def recipes(*bits: int) -> list[str]:
    names = [f"bits-{number}.yaml" for number in bits]
    for name, number in zip(names, bits, strict=True):
        step = f"quantize: {{method: rtn, bits: {number}, group_size: 16, format: squeeze}}"
        Path(name).write_text(f"steps:\n  - {step}\n")
    Path("text.txt").write_text(tiny_models.TRAINING_TEXT.decode()[:3000])
    return names


def test_a_checkpoint_is_packed_checked_and_restored():
    model_folder("model")
    squeeze.pack("model", "one")
    run("pack", *CLUSTER, "model", "packed")
    assert content("packed") == content("one")
    run("verify", *CLUSTER, "packed")
    run("unpack", *CLUSTER, "packed", "back")
    assert content("back") == content("model")
    damaged = Path("packed/model-00001-of-00002.safetensors")
    data = bytearray(damaged.read_bytes())
    data[-500] ^= 1
    damaged.write_bytes(data)
    result = call("verify", *CLUSTER, "packed")
    assert result.exit_code == 1 and damaged.name in result.stderr and "1 of 4 files failed" in result.stderr


def test_shards_are_those_of_one_machine():
    for number in range(30):
        path = Path("tree", f"{number % 3}", f"{number:02d}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d " % number * 2000)
    for folder, where in (("one", ("-q",)), ("out", CLUSTER)):
        Path(folder).mkdir()
        run("compress", "-1", "-r", "tree", "--shards", "30K", "-o", f"{folder}/part-{{}}.tar.sqz", *where)
    one, out = ({path.name: path.read_bytes() for path in Path(name).glob("*.sqz")} for name in ("one", "out"))
    assert one == out and len(one) > 10
    run("test", *CLUSTER, "--manifest", "out/part-manifest.jsonl")


def test_a_sweep_of_recipes_and_an_evaluation(model):
    names, tables, records = recipes(4, 8), [], []
    measure = ("--text", "text.txt", "--windows", "1")
    for folder, where in (("here", ()), ("there", ("--cluster", "local"))):
        result = call("apply", *names, "--models", model, "-o", folder, *measure, "-T", "1", *where)
        assert result.exit_code == 0, result.output
        tables.append(result.stdout)
        small = [Path(folder, f"model-bits-{number}") for number in (4, 8)]
        result = call("eval", *small, "--original", model, *measure, "--window", "64", "--json", "-T", "1", *where)
        assert result.exit_code == 0, result.output
        records.append([json.loads(line) for line in result.stdout.splitlines()])
    assert tables[0] == tables[1] and len(tables[0].splitlines()) == 3
    here, there = ([(one["perplexity"], one["kl_mean"]) for one in found] for found in records)
    assert here == there and here[0][1] > here[1][1] > 0
    for number in (4, 8):
        files = [Path(folder, f"model-bits-{number}", "model.safetensors") for folder in ("here", "there")]
        assert files[0].read_bytes() == files[1].read_bytes()
