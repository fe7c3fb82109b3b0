"""Hooks of hatchling: manual pages, and the machine code and dependencies of a wheel for a platform.

Manual pages are made by click-man from the help of the commands. SQUEEZE_WHEEL names a platform of PLATFORMS: then the
wheel is one for that platform, has the libraries that `python -m prebuilt` has made, and does not depend on numba.
"""

import os
import re
import sys
from inspect import cleandoc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from click_man.core import write_man_pages
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PLATFORMS = {"linux-x86_64": "manylinux_2_28_x86_64", "linux-aarch64": "manylinux_2_28_aarch64"}  # and tags of wheels
_LIBRARIES = "build/machine_code"

_AS_IT_STANDS = re.compile("\b\n(.*?)(?=\n\n|$)", re.DOTALL)  # a paragraph that click does not fill


class Dependencies(MetadataHookInterface):
    """Adds what compiles to the dependencies, unless the machine code is in the wheel."""

    def update(self, metadata: dict[str, Any]) -> None:
        compiler = [] if os.environ.get("SQUEEZE_WHEEL") else self.config["compiler"]
        metadata["dependencies"] = sorted([*self.config["dependencies"], *compiler])


class Contents(BuildHookInterface):
    """Puts manual pages into share/man/man1 of the environment, and libraries into the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        write(Path(self._folder.name), self.metadata.version, Path(self.root))
        pages = sorted(Path(self._folder.name).iterdir())
        build_data["shared_data"] |= {str(page): f"share/man/man1/{page.name}" for page in pages}
        if platform := os.environ.get("SQUEEZE_WHEEL"):
            build_data["tag"] = f"py3-none-{PLATFORMS[platform]}"
            build_data["pure_python"] = False
            files = libraries(Path(self.root), platform)
            build_data["force_include"] |= {str(file): f"squeeze/machine_code/{file.name}" for file in files}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


def libraries(root: Path, platform: str) -> list[Path]:
    """Return the libraries of a platform and their tables. Raise RuntimeError if they are not of these sources."""
    sys.path.insert(0, str(root))
    from prebuilt.targets import TARGETS, digest

    found, current = [], digest(root)
    for name in (name for name in TARGETS if name.startswith(platform)):
        made_of = root / _LIBRARIES / f"{name}.sources"
        if not made_of.is_file() or made_of.read_text() != current:
            raise RuntimeError(f"there is no current library for {name}: run `python -m prebuilt`")
        found += [made_of.with_suffix(".so"), made_of.with_suffix(".txt")]
    return found


def write(folder: Path, version: str, source: Path) -> None:
    """Write the pages of the commands in a source tree. Their help needs click alone."""
    sys.path.insert(0, str(source))
    from squeeze.cli import COMMANDS, main

    context = click.Context(main, **main.context_settings)
    for name, command in {"squeeze": main, **main.commands}.items():
        command.params = command.get_params(context)  # with those that a command makes when it is asked
        command.short_help = COMMANDS[name][1] if name in COMMANDS else "compression with predictive models"
        command.help = _AS_IT_STANDS.sub(r".nf\n\1\n.fi", cleandoc(command.help or ""))
    write_man_pages("squeeze", main, version=version, target_dir=str(folder))
