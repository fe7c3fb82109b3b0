"""Models and dictionaries on Ray's own workers: each process loads one once, whatever its calls ask for."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import squeeze
from squeeze.cluster import engine as engines, files
from squeeze.cluster.engine import Call, Needs
from squeeze.cluster.operations import COMPRESS, DECOMPRESS, File, Task
from squeeze.codecs.recurrent import weights
from squeeze.codecs.stream import dictionary
from squeeze.lm import models
from squeeze.system.unchanged import stamp_of
from tests.makers import inputs, tiny_models
from tests.makers.tokenwise import DATA, calm, text_around_noise

os.environ.update(engines.SETTINGS)  # which Ray reads when it is imported
ray = pytest.importorskip("ray", reason="pip install 'squeeze-neural[cluster]'")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.usefixtures("in_folder"),
]
TEXT = inputs.python_text(3_000)
NEEDS = Needs(), Needs(memory=1 << 28), Needs(gpus=1)
LOADERS = {
    "model": models._loaded,
    "dictionary": dictionary._read,
    "built in": dictionary._read_built_in,
    "network": weights.pretrained,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Start a cluster with one processor and a fake GPU."""
    ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def done_by(file: File, task: Task) -> tuple[int, dict[str, int], str]:
    """Return the worker's process id, what it has loaded so far, and what went wrong."""
    (done,) = files.process_files([file], task)
    return os.getpid(), {name: loader.cache_info().misses for name, loader in LOADERS.items()}, done.error


def run(operation: str, data: bytes, **options: Any) -> list[tuple[int, dict[str, int]]]:
    """Return what the process of each call had loaded by its end, for four calls with each of NEEDS."""
    engine: Any = engines.connect("auto")
    Path(operation).write_bytes(data)
    status, found = Path(operation).stat(), list[tuple[int, dict[str, int]]]()
    shared = engine.share(Task(operation, {"threads": 1, **options}, ".mark"))
    for number, needs in enumerate(NEEDS * 4):
        file = File(Path(operation), status.st_size, stamp_of(status), Path(f"{operation}-{number}"))
        engine.submit(Call(number, "a file", done_by, (file, shared), needs))
    while engine.is_busy:
        _, result, error = engine.next()
        assert error is None and not result[2], (error, result)
        found.append(result[:2])
    return found


def check(found: list[tuple[int, dict[str, int]]], *names: str) -> None:
    """Ray begins processes for other needs, and fewer than there are calls."""
    assert len({process for process, _ in found}) < len(found) == 4 * len(NEEDS)
    assert {loaded[name] for _, loaded in found for name in names} == {1}


@pytest.mark.slow
def test_a_worker_loads_a_language_model_once(cluster):
    tokenizer = tiny_models.byte_level()
    tiny_models.write_folder(Path("model"), tokenizer, calm(tokenizer))
    check(run(COMPRESS, TEXT, level=8, verify=True, model=Path("model")), "model")
    check(run(DECOMPRESS, text_around_noise(Path("model"), DATA, 1500), model=Path("model")), "model")


def test_a_worker_loads_a_dictionary_and_a_network_once(cluster):
    squeeze.train([TEXT] * 4, "dictionary.sqzp", level=5)
    options = {"dictionary": Path("dictionary.sqzp")}
    check(run(COMPRESS, TEXT, level=5, verify=True, **options), "dictionary", "built in", "network")
    check(run(DECOMPRESS, squeeze.compress(TEXT, 5, **options), **options), "dictionary", "built in", "network")
