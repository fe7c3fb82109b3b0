"""Serve S3 by moto on loopback, in a process of its own.

`python -m tests.makers.s3_server FOLDER [RATE SEED]` puts the files of a folder into the bucket `bucket`. It prints its
address, and that of the same store with faults in the share RATE of requests, and serves until its standard input ends.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread

from tests.makers.faulty import Faulty

Application = Callable[..., Iterable[bytes]]
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


def reached_at(address: str) -> dict[str, str]:
    """Return the environment in which s3:// is the server at an address."""
    return {**os.environ, **_CREDENTIALS, "AWS_ENDPOINT_URL": address}


@contextmanager
def serving(folder: Path, rate: float = 0, seed: int = 0) -> Iterator[dict[str, str]]:
    """Yield the environment in which s3:// is a server with the files of a folder.

    SOUND_URL is the address without faults, and SERVER_PROCESS the number of the server's process.

    Args:
        folder: folder of the files
        rate: share of requests that fail
        seed: seed of the faults
    """
    command = [sys.executable, "-m", "tests.makers.s3_server", folder, str(rate), str(seed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout and server.stdin
        sound, address = server.stdout.readline().strip(), server.stdout.readline().strip()
        if not address:
            raise SystemExit("Error: moto's server did not start: pip install 's3fs' 'moto[server]'")
        yield {**reached_at(address), "SOUND_URL": sound, "SERVER_PROCESS": str(server.pid)}
        server.stdin.close()


@cache
def stores() -> Application:
    """Return the application that answers for the stores of this process. Making it takes half a second."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    return DomainDispatcherApplication(create_backend_app)


def fill(folder: Path) -> None:
    """Put the files of a folder into `bucket` of this process."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    store = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    store.create_bucket("bucket", "us-east-1")
    for path in folder.rglob("*"):
        if path.is_file():
            store.put_object("bucket", path.relative_to(folder).as_posix(), path.read_bytes())


@contextmanager
def listening(application: Application) -> Iterator[str]:
    """Serve an application in threads of this process, and return its address."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


def main(folder: Path, rate: float = 0, seed: int = 0) -> None:
    fill(folder)
    with listening(stores()) as sound, listening(Faulty(stores(), rate, seed)) as address:
        print(f"{sound}\n{address}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
