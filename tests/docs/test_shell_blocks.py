"""The shell and Python blocks of the README and the guides run as they are, in order.

Those of the README run in an empty folder, with the bundled model. Those of the guides run in a folder of small files
and of models of a few thousand weights. A comment before a block says why it is not run, `<!-- not run: REASON -->`,
or names quicker options, `<!-- tested with QUICK in place of SLOW -->`. YAML blocks are written to recipe.yaml. Models
are calibrated on a few short sequences.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import LESSONS, Block, blocks, name_of
from tests.makers import lessons

_SECONDS = 900  # for a whole page
_LANGUAGES = ("sh", "python", "yaml", "text")
_SHORTER = "--samples 8 --sequence-length 128"
_SQUEEZE = f"""#!/bin/sh
case "$1" in quantize|prune|factorize|experts|delta|recover) set -- "$@" {_SHORTER};; esac
exec "{sys.executable}" -m squeeze "$@"
"""
_PYTHON = f"""#!/bin/sh
exec "{sys.executable}" "$@"
"""


def script(page: Path) -> str:
    """Return the blocks of a page as one shell script, which prints the line of each block before it."""
    return "\n".join(["set -euo pipefail", *(step(block) for block in blocks(page) if block.is_run)])


def step(block: Block) -> str:
    announce = f'echo "-- line {block.line}" >&2\n'
    if block.language == "sh":
        return announce + block.tested
    if block.language == "python":
        return f"{announce}python - <<'END_OF_BLOCK'\n{block.tested}END_OF_BLOCK"
    if block.language == "yaml":
        return f"cat > recipe.yaml <<'END_OF_BLOCK'\nsamples: 8\nsequence_length: 128\n{block.tested}END_OF_BLOCK"
    return ""


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for PATH in which `squeeze` and `python` are those under test."""
    folder = tmp_path_factory.mktemp("commands")
    for name, text in {"squeeze": _SQUEEZE, "python": _PYTHON}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", LESSONS, ids=name_of)
def test_blocks_run(page: Path, tmp_path: Path, commands: Path):
    if page.name != "README.md":
        lessons.write(tmp_path)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-c", script(page)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("page", LESSONS, ids=name_of)
def test_blocks_are_of_a_known_kind(page: Path):
    assert [block.line for block in blocks(page) if block.language not in _LANGUAGES] == []
    assert [block.line for block in blocks(page) if block.comment and block.is_run and block.tested == block.code] == []
