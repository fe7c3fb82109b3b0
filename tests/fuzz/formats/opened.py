"""A .sqz file whose blocks have opened wrappers: trees, pieces, groups, and what closes deflate streams."""

from pathlib import Path

from tests.fuzz.formats.sqz import Sqz
from tests.makers import wrapped


class Opened(Sqz):
    """Files of zip archives, gzip files, zlib streams and images."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder, 1)

    def _inputs(self) -> list[tuple[bytes, int]]:
        documents = wrapped.documents() | wrapped.escaped()
        joined = b"".join(documents.values())
        return [*((document, 1 << 20) for document in documents.values()), (joined, 4_000)]


FORMAT = Opened
