"""Man pages of the command and of its commands, made by click-man from their help when a wheel is built."""

import re
import sys
from inspect import cleandoc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from click_man.core import write_man_pages
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_AS_IT_STANDS = re.compile("\b\n(.*?)(?=\n\n|$)", re.DOTALL)  # a paragraph that click does not fill


class ManPages(BuildHookInterface):
    """Puts them into share/man/man1 of the environment."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        write(Path(self._folder.name), self.metadata.version, Path(self.root))
        pages = sorted(Path(self._folder.name).iterdir())
        build_data["shared_data"] |= {str(page): f"share/man/man1/{page.name}" for page in pages}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


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
