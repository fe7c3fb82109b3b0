"""S3 as moto speaks it, on loopback, in a process of its own.

`python -m bench.shared.s3_server FOLDER` puts the files of a folder into the bucket `bucket`, prints the address, and
serves until its standard input ends.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which s3:// is a server that holds the files of a folder."""
    command = [sys.executable, "-m", "bench.shared.s3_server", folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout and server.stdin
        address = server.stdout.readline().strip()
        if not address:
            raise SystemExit("Error: moto's server did not start: pip install 's3fs' 'moto[server]'")
        yield {**os.environ, **_CREDENTIALS, "AWS_ENDPOINT_URL": address}
        server.stdin.close()


def main(folder: Path) -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    store.create_bucket("bucket", "us-east-1")
    for path in folder.rglob("*"):
        if path.is_file():
            store.put_object("bucket", path.relative_to(folder).as_posix(), path.read_bytes())
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
