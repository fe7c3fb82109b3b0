"""Files by the workers of a Ray cluster, and in object storage."""

from bench.entry import Entry

DEMO = Entry(
    measures="a corpus in S3 compressed by two nodes, one worker killed meanwhile; proved, and one member read",
    minutes=2,
    rivals=("ray", "s3fs", "moto"),
)

ENTRIES = {"demo-cluster": DEMO}
