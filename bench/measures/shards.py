"""Small files of S3 put into shards on S3, beside `tar c | squeeze` of the same files on the disk, at the same level.

The server is moto's, a process of its own on the same machine. Each side codes with one thread. What comes out is
restored and compared, and a member of the last shard is fetched.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import squeeze
from bench.entry import Row
from bench.shared.s3_server import serving
from squeeze.system import storage

_SQUEEZE = (sys.executable, "-m", "squeeze")


def corpus(folder: Path, count: int, size: int) -> None:
    """So many files of so many bytes: pieces of sources of Python's packages."""
    made = 0
    for source in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        data = source.read_bytes()
        for start in range(0, len(data) - size + 1, size):
            path = folder / "files" / f"{made // 1000:03d}" / f"{made:06d}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[start : start + size])
            made += 1
            if made == count:
                return
    raise SystemExit(f"Error: Python's packages hold {made} pieces of {size} bytes only: choose fewer --files")


def timed(command: list[str | Path]) -> tuple[float, float]:
    """Seconds that pass, and those of processors that the command takes."""
    before, started = os.times(), time.perf_counter()
    subprocess.run(command, check=True)
    passed, after = time.perf_counter() - started, os.times()
    return passed, sum(after[2:4]) - sum(before[2:4])


def of_the_server(environment: dict[str, str]) -> float:
    """Seconds of processors that the server has taken so far."""
    import psutil

    used = psutil.Process(int(environment["SERVER_PROCESS"])).cpu_times()
    return float(used.user + used.system)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        source, warm, packed = Path(name, "source"), Path(name, "warm"), Path(name, "all.tar.sqz")
        corpus(source, options.files, options.size)
        corpus(warm, 10, options.size)
        with serving(source) as environment:
            os.environ.update(environment)
            for level in options.levels.split(","):
                coding: list[str | Path] = [*_SQUEEZE, "compress", "-q", f"-{level}", "-T", "1", "-f"]
                sharding = [*coding, "-r", "--shards", options.shards]
                notes = [*sharding, "--manifest", Path(name, f"manifest-{level}.jsonl")]
                timed(
                    [
                        *sharding,
                        warm,
                        "--manifest",
                        Path(name, f"warm-{level}.jsonl"),
                        "-o",
                        Path(name, "warm-{}.tar.sqz"),
                    ]
                )
                piped = " ".join(map(str, ["tar", "c", "-C", source, ".", "|", *coding, "-o", packed]))
                local, local_processor = timed(["sh", "-c", piped])
                out = f"s3://bucket/shards-{level}"
                before = of_the_server(environment)
                remote, remote_processor = timed([*notes, "s3://bucket/files", "-o", f"{out}/part-{{}}.tar.sqz"])
                server = of_the_server(environment) - before
                sizes = {str(path): path.lstat().st_size for path in storage.path_of(out).rglob("*")}
                made = [path for path in sizes if not path.endswith(".members.sqz")]
                yield {
                    "level": int(level),
                    "files": options.files,
                    "file bytes": options.size,
                    "shards": len(made),
                    "tar | squeeze": round(local, 1),
                    "from S3": round(remote, 1),
                    "of its speed": round(local / remote, 3),
                    "tar | squeeze, processor": round(local_processor, 1),
                    "from S3, processor": round(remote_processor, 1),
                    "server, processor": round(server, 1),
                    "tar bytes": packed.stat().st_size,
                    "shard bytes": sum(sizes[path] for path in made),
                    "index bytes": sum(size for path, size in sizes.items() if path not in made),
                    "member seconds": round(restored(made, source / "files"), 2),
                }


def restored(shards: list[str], source: Path) -> float:
    """Compare what shards hold with the files; seconds that fetching one of the last shard takes."""
    left = {path.relative_to(source).as_posix() for path in source.rglob("*.txt")}
    names: list[str] = []
    for shard in shards:
        with squeeze.open(shard) as content, tarfile.open(fileobj=content, mode="r|") as tar:
            names = []
            for one in tar:
                file = tar.extractfile(one)
                if file is None or file.read() != (source / one.name).read_bytes():
                    raise SystemExit(f"Error: {one.name} was not restored")
                names.append(one.name)
        left -= set(names)
    if left:
        raise SystemExit(f"Error: {len(left)} files are in no shard")
    name = names[len(names) // 2]
    with tempfile.NamedTemporaryFile() as out:
        seconds, _ = timed([*_SQUEEZE, "decompress", "-q", "-f", shards[-1], "--member", name, "-o", out.name])
        if Path(out.name).read_bytes() != (source / name).read_bytes():
            raise SystemExit(f"Error: {name} was not fetched")
    return seconds
