"""A .sqz file of programs: plans with segments and parts, whose places and kinds are changed, too."""

from pathlib import Path

from tests.fuzz.formats.sqz import Sqz
from tests.makers import programs, wrapped


class Programs(Sqz):
    """Files of one program, of several with other bytes between them, and of a zip archive of them."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder, 1)

    def _inputs(self) -> list[tuple[bytes, int]]:
        images = programs.images()
        joined = b"between".join(images.values())
        archive = wrapped.zip_archive({"program": images["ELF x86-64"], "library": images["PE x86-64"]})
        return [*((image, 1 << 20) for image in images.values()), (joined, 1 << 20), (archive, 1 << 20)]


FORMAT = Programs
