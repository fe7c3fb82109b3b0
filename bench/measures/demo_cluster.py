"""Compress a corpus in S3 on two Ray nodes while a worker is killed, verify it, and restore one member of a shard.

S3 is moto's server, and the Ray nodes are on this machine; all use loopback. The corpus is files of Python's library.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.measure import Measure, Row
from bench.measures.cluster import corpus
from squeeze.cluster.engine import SETTINGS
from tests.makers import s3_server

_BYTES = 2_000_000  # of the corpus
_BUCKET = "s3://bucket"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        source, manifest = Path(name, "source"), Path(name, "manifest.jsonl")
        source.mkdir()
        size = corpus(source / "corpus", _BYTES)
        shutil.copytree(source / "corpus", source / "again")  # nothing compressed will lie beside these
        with s3_server.serving(source) as environment:
            os.environ.update(environment, **SETTINGS)  # which workers inherit
            with two_nodes() as workers:
                killed = compress_and_kill(workers, "--manifest", manifest)
                squeeze("test", "--cluster", "auto", "--manifest", manifest, f"{_BUCKET}/corpus")
                shards = f"{_BUCKET}/shards/part-{{}}.tar.sqz"
                by = ("--cluster", "auto", "--manifest", Path(name, "shards.jsonl"))
                squeeze("compress", "-1", "-r", "--shards", "2M", "-o", shards, *by, f"{_BUCKET}/again")
                squeeze("test", *by, f"{_BUCKET}/shards")
            member = min((source / "corpus").iterdir())
            restored = Path(name, "member")
            squeeze("decompress", "--member", member.name, "-o", restored, shards.replace("{}", "0"))
            if restored.read_bytes() != member.read_bytes():
                sys.exit("Error: the member differs from the original")
            coded = stored_bytes("corpus", ".sqz")
            print(f"\nEvery object was proved by the manifest; {member.name} came out of a shard as it was.\n")
            yield {
                "files": len(list((source / "corpus").iterdir())),
                "bytes": size,
                "compressed": coded,
                "in shards": stored_bytes("shards", ".tar.sqz"),
                **killed,
            }


@contextmanager
def two_nodes() -> Iterator[list[Any]]:
    """Start a cluster on this machine: a head without cores, and two nodes of one core each."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield [cluster.add_node(num_cpus=1) for _ in range(2)]
    finally:
        ray.shutdown()
        cluster.shutdown()
        del os.environ["RAY_ADDRESS"]


def busy_workers(nodes: list[Any]) -> list[int]:
    """Return the process numbers of workers that run one of our tasks, which their process titles show."""
    import psutil

    found: list[int] = []
    for node in nodes:
        with suppress(psutil.NoSuchProcess):
            for one in psutil.Process(node.all_processes["raylet"][0].process.pid).children():
                if one.cmdline()[:1] and one.cmdline()[0].startswith(("ray::compress", "ray::join", "ray::shard")):
                    found.append(one.pid)
    return found


def compress_and_kill(nodes: list[Any], *arguments: str | Path) -> Row:
    """Compress the corpus in S3, and kill the first worker that is seen to compress."""
    where = ("--cluster", "auto", *arguments)
    running = subprocess.Popen(command("compress", "-3", "-r", "--block-size", "256K", *where, f"{_BUCKET}/corpus"))
    killed = 0
    while running.poll() is None:
        if not killed and (workers := busy_workers(nodes)):
            time.sleep(1)  # let it be in the middle of something
            killed = workers[0]
            os.kill(killed, signal.SIGKILL)
            print(f"$ kill -9 {killed}  # a worker", flush=True)
        time.sleep(0.05)
    if running.returncode:
        sys.exit("Error: the corpus was not compressed")
    return {"workers killed": 1 if killed else 0}


def command(*arguments: str | Path) -> list[str]:
    print("$ squeeze", *(a.name if isinstance(a, Path) else a for a in arguments), flush=True)
    return [sys.executable, "-m", "squeeze", *map(str, arguments)]


def squeeze(*arguments: str | Path) -> None:
    subprocess.run(command(*arguments), check=True)


def stored_bytes(prefix: str, ending: str) -> int:
    """Return the total bytes of objects with this prefix and suffix."""
    import fsspec

    found = fsspec.filesystem("s3").find(f"bucket/{prefix}", detail=True)
    return sum(info["size"] for name, info in found.items() if name.endswith(ending))


MEASURE = Measure(rows, rivals=("ray", "s3fs", "moto"), time=2)
