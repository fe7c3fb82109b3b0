"""Runs on a local cluster in which something fails at random: a worker of Ray, a node or the driver is killed, or the
storage does not answer.

A run survives if, after the same command was run again where its driver was killed, every output is there with the
bytes that one machine writes, the manifest proves it, and nothing else is left. A run that had ended before anything
was killed does not count.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.entry import Row
from bench.measures.cluster import corpus
from bench.shared.s3_server import serving
from squeeze.cluster.engine import SETTINGS

_COMMAND = (sys.executable, "-m", "squeeze")
_COMPRESS = (*_COMMAND, "compress", "-r", "-q", "-1", "--block-size", "64K", "--cluster", "auto")
_MANIFEST = ".squeeze-compress.jsonl"
_LATEST = 0.1  # seconds of a call after which something is killed, at most
_HUNG = 240  # seconds after which a command counts as one that hangs
_CALLS = ("ray::compress", "ray::join", "ray::shard")
_HEAD = {"num_cpus": 0, "include_dashboard": False}
_HEALTH = {  # how soon Ray takes a node for lost that does not answer: in 5 s in place of 15
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
}


@dataclass(frozen=True)
class Nodes:
    """A cluster on this machine: a head that only keeps it together, and two nodes of one processor each."""

    cluster: Any
    workers: list[Any]

    def at_work(self) -> list[tuple[int, Any]]:
        """Process numbers of workers that run a call of ours, each with its node."""
        import psutil

        found = []
        for node in self.workers:
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(node.all_processes["raylet"][0].process.pid).children()
                found += [(one.pid, node) for one in children if _title(one.pid).startswith(_CALLS)]
        return found

    def lose(self, node: Any) -> None:
        """Kill a node, and bring another."""
        self.workers.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)
        self.workers.append(self.cluster.add_node(num_cpus=1))


def _title(process: int) -> str:
    """What a process calls itself, which a worker of Ray changes with each call."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    return ""


def _struck(kind: str, running: "subprocess.Popen[bytes]", chance: random.Random, nodes: Nodes) -> bool:
    """Kill what is to be killed while a call is at work; whether the run had not ended before."""
    until = time.monotonic() + _LATEST * chance.random()
    while running.poll() is None:
        time.sleep(0.05)
        victims = nodes.at_work()
        if not victims:
            until = time.monotonic() + _LATEST * chance.random()
        elif time.monotonic() >= until:
            process, node = chance.choice(victims)
            if kind == "node":
                nodes.lose(node)
            else:
                os.kill(process if kind == "worker" else running.pid, signal.SIGKILL)
            return True
    return False


def _command(source: object, out: object, shards: str) -> tuple[list[str], str]:
    """What compresses the files of a folder or a prefix, and its manifest, by its name. out: for shards."""
    if not shards:
        return [*_COMPRESS, str(source)], _MANIFEST
    return [*_COMPRESS, "--shards", shards, str(source), "-o", f"{out}/part-{{}}.tar.sqz"], "part-manifest.jsonl"


def survives(
    source: Path, expected: dict[str, bytes], kind: str, chance: random.Random, nodes: Nodes, shards: str
) -> bool | None:
    """None where the run had ended before anything was killed."""
    with tempfile.TemporaryDirectory(dir=source.parent) as name:
        folder = Path(name, "corpus")
        shutil.copytree(source, folder)
        out = Path(name, "out") if shards else folder
        out.mkdir(exist_ok=True)
        command, manifest = _command(folder, out, shards)
        running = subprocess.Popen(command)
        struck = _struck(kind, running, chance, nodes)
        status = _ended(running)
        if kind == "driver" and struck:
            status = _run(command)
        proved = _run([*_COMMAND, "test", "-q", "--manifest", out / manifest])
        found = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix == ".sqz"}
        left = {path.name for path in out.iterdir()} - {manifest, *found, *(path.name for path in source.iterdir())}
        sound = status == 0 and proved == 0 and found == expected and not left
        if not sound:
            print(f"{kind}: status {status}, proof {proved}, {len(found)} outputs of {len(expected)}, left {left}")
        return sound if struck or not sound else None


def _ended(running: "subprocess.Popen[bytes]") -> int | str:
    """The exit status of a command, or that it hangs; then it is killed."""
    try:
        return running.wait(_HUNG)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
        return "it hangs"


def _run(command: Sequence[str | Path], folder: Path | None = None) -> int | str:
    return _ended(subprocess.Popen(command, cwd=folder))


def survives_storage(source: Path, expected: dict[str, bytes], number: int, sound: Any, shards: str) -> bool:
    """The same of objects in a prefix of their own, in storage that fails."""
    for path in source.iterdir():
        sound.put_object(Bucket="bucket", Key=f"{number}/{path.name}", Body=path.read_bytes())
    prefix = f"out-{number}" if shards else f"{number}"
    command, manifest = _command(f"s3://bucket/{number}", f"s3://bucket/{prefix}", shards)
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        status = _run(command, Path(folder))
        proved = _run([*_COMMAND, "test", "-q", "--manifest", manifest, f"s3://bucket/{prefix}"], Path(folder))
    listed = sound.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=f"{prefix}/")
    keys = {one["Key"].partition("/")[2] for page in listed for one in page.get("Contents", [])}
    found = {
        key: sound.get_object(Bucket="bucket", Key=f"{prefix}/{key}")["Body"].read()
        for key in keys
        if key.endswith(".sqz")
    }
    left = keys - {*found, *(path.name for path in source.iterdir())}
    survived = status == 0 and proved == 0 and found == expected and not left
    if not survived:
        print(f"storage: status {status}, proof {proved}, {len(found)} outputs of {len(expected)}, left {left}")
    return survived


def rows(options: argparse.Namespace) -> Iterator[Row]:
    os.environ.update(SETTINGS)  # which Ray reads when it is imported
    chance, kinds, shards = random.Random(options.seed), options.kinds.split(","), options.shards
    more = ", into shards" if shards else ""
    with tempfile.TemporaryDirectory() as name:
        source, plain = Path(name, "source"), Path(name, "plain")
        corpus(source, options.bytes)
        shutil.copytree(source, plain)
        out = Path(name, "out") if shards else plain
        out.mkdir(exist_ok=True)
        subprocess.run(_alone(_command(plain, out, shards)[0]), check=True)
        expected = {path.name: path.read_bytes() for path in out.glob("*.sqz")}
        for kind in (kind for kind in kinds if kind != "storage"):
            with two_nodes() as nodes:
                made = _counted(options.runs, lambda _: survives(source, expected, kind, chance, nodes, shards))  # noqa: B023
            yield {"killed": f"{kind}{more}", "seed": options.seed, **made}
        if "storage" in kinds:
            with serving(Path(name, "nothing"), options.rate, options.seed) as environment:
                os.environ.update(environment)
                with two_nodes():
                    made = _storage_runs(source, expected, options.runs, environment["SOUND_URL"], shards)
            yield {"killed": f"storage{more}", "seed": options.seed, **made, "rate": options.rate}


def _alone(command: list[str]) -> list[str]:
    """By one machine."""
    return [word for word in command if word not in ("--cluster", "auto")]


def _counted(runs: int, run: Callable[[int], bool | None]) -> Row:
    """Runs in which something was killed, as far as half as many more tries go; each is told on standard error."""
    made: list[bool] = []
    for number in range(runs + runs // 2):
        if len(made) == runs:
            break
        started = time.monotonic()
        survived = run(number)
        said = {True: "survived", False: "did not survive", None: "had ended before"}[survived]
        print(f"run {number + 1}: {said}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        if survived is not None:
            made.append(survived)
    return {"runs": len(made), "survived": sum(made)}


def _storage_runs(source: Path, expected: dict[str, bytes], runs: int, url: str, shards: str) -> Row:
    import boto3

    sound = boto3.client("s3", endpoint_url=url)
    return _counted(runs, lambda number: survives_storage(source, expected, number, sound, shards))


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**_HEAD, "_system_config": _HEALTH})
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield Nodes(cluster, [cluster.add_node(num_cpus=1) for _ in range(2)])
    finally:
        ray.shutdown()
        cluster.shutdown()
        del os.environ["RAY_ADDRESS"]
