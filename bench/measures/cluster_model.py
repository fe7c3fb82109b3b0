"""What a call and a file cost the driver of a cluster, measured; the model of bench/shared/scaling.py beside a run of
many short calls; and what it says of large clusters.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from bench.entry import Row
from bench.shared import generated_store
from bench.shared.scaling import Corpus, Costs, predict
from squeeze.cluster import files
from squeeze.cluster.engine import SETTINGS, Call, Engine, Needs
from squeeze.cluster.files import COMPRESS, Done, File, Task, stamp_of
from squeeze.cluster.planning import Planner
from squeeze.cluster.run import Kind, Run
from squeeze.cluster.tasks import each
from squeeze.codecs.stream import levels
from squeeze.system import storage

_TB = 1e12


def nothing() -> int:
    return os.getpid()


def noted(batch: Sequence[File], task: Task) -> list[Done]:
    """A worker that says at once that all is done."""
    return [Done(file, file.size, 900, "0123456789abcdef") for file in batch]


def of_the_driver() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rows(options: argparse.Namespace) -> Iterator[Row]:
    os.environ.update(SETTINGS)  # which Ray reads when it is imported
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        engine: Engine[int] = Engine(ray)
        started = time.perf_counter()
        list(each(engine, [Call(0, "first", nothing, ())]))
        start = time.perf_counter() - started
        before, started = of_the_driver(), time.perf_counter()
        list(each(engine, (Call(number, "nothing", nothing, ()) for number in range(options.calls))))
        call = (of_the_driver() - before) / options.calls
        whole = (time.perf_counter() - started) / options.calls
        costs = Costs(call, of_a_file(options.files), start)
        facts = {
            "call, ms": 1e3 * costs.call,
            "file, ms": 1e3 * costs.file,
            "start, s": start,
            "call's time, ms": 1e3 * whole,
        }
        yield {"scenario": "costs", **{name: round(value, 4) for name, value in facts.items()}}
        yield checked(engine, costs, options.files)
    finally:
        ray.shutdown()
    for level, name, size in ((3, "files of 64 MB", 64e6), (6, "files of 64 MB", 64e6), (3, "files of 2 KB", 2e3)):
        corpus = Corpus(10 * _TB, size, levels.estimate_seconds(level, 1_000_000, 1, True) / 1e6)
        yield row(f"10 TB, {name}, -{level}, 1,000 processors", corpus, 1000, costs)
    for size in (64e6, 2e5):
        corpus = Corpus(10 * _TB, size, 1 / (options.gpu_rate * 1e6))
        name = f"10 TB, files of {size / 1e6:g} MB, 100 GPUs of {options.gpu_rate:g} MB/s each (assumed)"
        yield row(name, corpus, 100, costs)


def row(scenario: str, corpus: Corpus, workers: int, costs: Costs) -> Row:
    found = predict(corpus, workers, costs)
    return {
        "scenario": scenario,
        "hours": round(found.hours, 2),
        "calls": round(found.calls),
        "driver": round(found.driver, 5),
        "writes": round(found.writes, 5),
        "tail": round(found.tail, 1),
        "breaks": found.breaks,
        "at": round(found.at),
    }


def of_a_file(number: int) -> float:
    """Seconds of the driver's processor for one file, listed, planned and noted."""
    seconds = []
    for objects in (1000, 1000 + number):
        command = [sys.executable, "-m", "bench.measures.cluster_listing", str(objects)]
        seconds.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["processor"])
    return (seconds[1] - seconds[0]) / number


def checked(engine: Engine[int], costs: Costs, number: int) -> Row:
    """The driver's processor time for many short calls, beside what the model says."""
    place = storage.remote(storage.path_of(f"generated://corpus-{number}"))
    assert place and generated_store.Generated
    target = storage.path_of("generated://corpus/x.sqz")
    listed = (File(path, 2000, stamp_of(path.lstat()), target) for path in place.walk())  # type: ignore[arg-type]
    options = {"level": 1, "verify": True, "block_size": None, "threads": 1}
    kind = Kind(Planner, noted, files.work, files.join)
    going = Run(engine, Task(COMPRESS, options, ""), None, Needs(), seconds=0.2, kind=kind)
    before = of_the_driver()
    done = sum(1 for _ in going.results(listed))
    spent = of_the_driver() - before
    said = going.calls * costs.call + done * costs.file
    return {
        "scenario": "checked",
        "files": done,
        "calls": going.calls,
        "measured, s": round(spent, 2),
        "model, s": round(said, 2),
    }
