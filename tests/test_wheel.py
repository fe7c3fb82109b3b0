"""The wheel, installed into an empty environment without a compiler, does what the README begins with.

Nothing of the source is in reach there. pip takes packages from its cache; it asks its index which there are.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.makers import lessons
from tests.makers.environments import PINNED, empty, pip, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an sdist, and of the wheel made of it."""
    pytest.importorskip("build", reason="`make test-slow` installs what builds the wheel")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it needs."""
    found = empty(tmp_path_factory.mktemp("environment"))
    pip(found, "install", *PINNED, next(built.glob("*.whl")))
    return found


def test_what_is_built_can_be_published(built: Path):
    pytest.importorskip("twine", reason="`make test-slow` installs what checks the wheel")
    names = sorted(path.name for path in built.iterdir())
    assert [name.partition("-")[0] for name in names] == ["squeeze_neural"] * 2
    run(sys.executable, "-m", "twine", "check", "--strict", *(built / name for name in names))


def test_torch_does_not_come_along(python: Path):
    code = "from importlib.util import find_spec; print([find_spec(n) for n in ('torch', 'transformers', 'llama_cpp')])"
    assert run(python, "-c", code) == "[None, None, None]\n"
    assert run(python, "-c", "import squeeze; print(squeeze.__file__)").startswith(str(python.parents[1]))


def test_there_are_manual_pages(python: Path):
    pages = {path.name for path in (python.parents[1] / "share" / "man" / "man1").iterdir()}
    assert {"squeeze.1", "squeeze-compress.1"} <= pages


def test_the_first_commands_of_the_readme_run(python: Path, tmp_path: Path):
    lessons.write(tmp_path)
    first = next(block for block in blocks(ROOT / "README.md") if block.language == "sh" and block.is_run)
    assert first.code.startswith("squeeze compress")
    with_model = "squeeze compress -f -8 --model my-model book.txt\nsqueeze test --model my-model book.txt.sqz\n"
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    if "SQUEEZE_CACHE" in os.environ:
        environment["SQUEEZE_CACHE"] = os.environ["SQUEEZE_CACHE"]
    done = subprocess.run(
        ["bash", "-euc", first.code + with_model],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
