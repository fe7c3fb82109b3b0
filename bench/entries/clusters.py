"""Files by the workers of a Ray cluster, and in object storage."""

from pathlib import Path

from bench.entry import Entry, Row, option
from bench.tables import Column, Listing, percent


def _driver_load(row: Row) -> str:
    """The share of a core that the driver takes beside one worker."""
    return f"{100 * row['driver, processor'] / row['one worker']:.1f} %"


def _run(row: Row) -> str:
    return str(row["scenario"]).replace("processors", "cores")


_CLUSTER_BYTES = option("--bytes", type=int, default=20_000_000, help="of files of Python's library (20000000)")
CLUSTER = Entry(
    measures="files by one worker of a local cluster and by two, beside the command without a cluster",
    minutes=20,
    key=("level",),
    options=(
        _CLUSTER_BYTES,
        option("--levels", default="1,3", help="with commas between them (1,3)"),
        option("--runs", type=int, default=2, help="of which the fastest counts (2)"),
    ),
    tables={
        "cluster": Listing(
            (
                Column("level", lambda row: -row["level"]),
                Column("files", "files", ","),
                Column("bytes", "raw", ","),
                Column("no cluster, s", "without", ".1f"),
                Column("1 worker, s", "one worker", ".1f"),
                Column("2 workers, s", "two workers", ".1f"),
                Column("speed-up", "two of one", ".2f"),
                Column("of two commands", "two commands of one", ".2f"),
                Column("CPU-s, no cluster", "without, processor", ".1f"),
                Column("CPU-s, 1 worker", "one worker, processor", ".1f"),
                Column("CPU-s, driver", "driver, processor", ".1f"),
                Column("CPU-s, each of 2 workers", lambda row: " and ".join(map(str, row["two workers, processor"]))),
                Column("speed-up by CPU-s", "two of one, processor", ".2f"),
                Column("driver load", _driver_load),
            ),
            order=lambda row: row["level"],
        )
    },
)
CLUSTER_FAULTS = Entry(
    measures="runs on a local cluster in which a worker, a node or the driver is killed, or storage fails at random",
    minutes=40,
    key=("killed", "seed"),
    rivals=("s3fs", "moto"),
    options=(
        option("--bytes", type=int, default=3_000_000, help="of files of Python's library (3000000)"),
        option("--runs", type=int, default=25, help="of each kind (25)"),
        option("--kinds", default="worker,driver,node,storage", help="with commas (worker,driver,node,storage)"),
        option("--rate", type=float, default=0.1, help="share of the storage's requests that fail (0.1)"),
        option("--seed", type=int, default=1, help="of the moments (1)"),
        option("--shards", default="", help="raw bytes of a shard, in place of a file for each (none)"),
    ),
    tables={
        "cluster-faults": Listing(
            (
                Column("killed", "killed"),
                Column("seed", "seed"),
                Column("runs", "runs"),
                Column("survived", "survived"),
            ),
            order=lambda row: (row["killed"], row["seed"]),
        )
    },
)
CLUSTER_LISTING = Entry(
    measures="the driver's memory for a prefix of a generated store, whose objects are listed, planned and noted",
    minutes=6,
    key=("objects", "shards"),
    needs=("fsspec",),
    options=(
        option("--objects", default="1000,1000000", help="with commas between them (1000,1000000)"),
        option("--shards", default="", metavar="SIZE", help="bytes of each, such as 16M; without it, files alone"),
    ),
    tables={
        "cluster-listing": Listing(
            (
                Column("objects", "objects", ","),
                Column("in shards of", lambda row: row["shards"] or "none"),
                Column("peak, MB", lambda row: row["peak"] / 1e6, ".0f"),
                Column("CPU-s", "processor", ".0f"),
                Column("manifest, MB", lambda row: row["manifest"] / 1e6, ".0f"),
            ),
            order=lambda row: (row["shards"], row["objects"]),
        )
    },
)
CLUSTER_MODEL = Entry(
    measures="what a call and a file cost the driver of a cluster, and what a model makes of that for large clusters",
    minutes=2,
    key=("scenario",),
    needs=("ray",),
    options=(
        option("--calls", type=int, default=500, help="that do nothing (500)"),
        option("--files", type=int, default=10_000, help="of a generated store (10000)"),
        option("--gpu-rate", type=float, default=0.2, help="MB/s that are assumed of a GPU (0.2)"),
    ),
    tables={
        "cluster-costs": Listing(
            (
                Column("driver CPU for a task, ms", "call, ms", ".2f"),
                Column("driver CPU for a file, ms", "file, ms", ".3f"),
                Column("from task to task on one worker, ms", "call's time, ms", ".2f"),
                Column("until the first task is done, s", "start, s", ".1f"),
            ),
            where=lambda row: row["scenario"] == "costs",
        ),
        "cluster-checked": Listing(
            (
                Column("files", "files", ","),
                Column("tasks", "calls", ","),
                Column("CPU-s, driver", "measured, s", ".2f"),
                Column("CPU-s by the model", "model, s", ".2f"),
            ),
            where=lambda row: row["scenario"] == "checked",
        ),
        "cluster-model": Listing(
            (
                Column("run", _run),
                Column("hours", "hours", ".2f"),
                Column("tasks", "calls", ","),
                Column("driver load", percent("driver", 2)),
                Column("request load of one prefix", percent("writes", 2)),
                Column("tail, s", "tail", ".0f"),
                Column("bottleneck", "breaks"),
                Column("full at so many workers", "at", ","),
            ),
            where=lambda row: "hours" in row,
        ),
    },
)
SHARDS = Entry(
    measures="small files of an S3 server on loopback put into shards, beside tar of the same files on the disk, piped",
    minutes=20,
    key=("level", "files"),
    needs=("s3fs", "moto"),
    options=(
        option("--files", type=int, default=5_000, help="how many (5000)"),
        option("--size", type=int, default=2_000, help="bytes of each (2000)"),
        option("--levels", default="1,3", help="with commas between them (1,3)"),
        option("--shards", default="8M", help="raw bytes of a shard (8M)"),
    ),
    tables={
        "shards": Listing(
            (
                Column("level", lambda row: -row["level"]),
                Column("files", "files", ","),
                Column("tar piped to squeeze, s", "tar | squeeze", ".1f"),
                Column("S3 to shards on S3, s", "from S3", ".1f"),
                Column("relative speed", "of its speed", ".2f"),
                Column("CPU-s, tar piped", "tar | squeeze, processor", ".1f"),
                Column("CPU-s, S3 to shards", "from S3, processor", ".1f"),
                Column("CPU-s, server meanwhile", "server, processor", ".1f"),
                Column("one file, bytes", "tar bytes", ","),
                Column("shards, bytes", "shard bytes", ","),
                Column("their indexes, bytes", "index bytes", ","),
                Column("one member, s", "member seconds", ".2f"),
            ),
            order=lambda row: row["level"],
        )
    },
)
RANGE_READS = Entry(
    measures="a few bytes out of a large .sqz file on an S3 server on loopback: requests, and bytes fetched",
    minutes=3,
    key=("level", "bytes"),
    needs=("s3fs", "moto"),
    options=(
        option("--gigabytes", type=float, default=1, help="of the file (1)"),
        option("--level", type=int, default=1, help="it is compressed at (1)"),
        option("--bytes", type=int, default=1024, help="that are read (1024)"),
        option("--readings", type=int, default=20, help="at random places, each of the file opened anew (20)"),
        option("--folder", type=Path, help="where twice as much fits (that of temporary files)"),
    ),
    tables={
        "range-reads": Listing(
            (
                Column("level", lambda row: -row["level"]),
                Column("file, bytes", "file", ","),
                Column("bytes read", "bytes", ","),
                Column("requests for the index", "index, requests"),
                Column("its bytes", "index, bytes", ","),
                Column("requests for the range", "range, requests"),
                Column("bytes fetched", "range, bytes", ","),
                Column("seconds", "seconds", ".2f"),
            ),
            order=lambda row: row["level"],
        )
    },
)
DEMO = Entry(
    measures="a corpus in S3 compressed by two nodes, one worker killed meanwhile; proved, and one member read",
    minutes=2,
    rivals=("ray", "s3fs", "moto"),
)

ENTRIES = {
    "cluster": CLUSTER,
    "cluster-faults": CLUSTER_FAULTS,
    "cluster-listing": CLUSTER_LISTING,
    "cluster-model": CLUSTER_MODEL,
    "shards": SHARDS,
    "range-reads": RANGE_READS,
    "demo-cluster": DEMO,
}
