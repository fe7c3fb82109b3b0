"""Install the wheel into an empty environment without a compiler, and run the README's first commands.

The source is not reachable there. pip takes packages from its cache, and asks its index only for their names.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.makers import lessons

pytestmark = pytest.mark.slow
PINNED = ("--only-binary", ":all:", "--constraint", ROOT / "constraints.txt")  # no compiler is needed


def empty(folder: Path) -> Path:
    """Make an environment, and return its Python."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def pip(python: str | Path, *arguments: str | Path) -> None:
    run(python, "-m", "pip", arguments[0], "--disable-pip-version-check", "--quiet", *arguments[1:])


def run(*command: str | Path, folder: Path | None = None) -> str:
    """Run a program that must succeed, without PYTHONPATH and in `folder` (default /). Return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder or "/",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"Error: {command[0]} exited with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an sdist, and of the wheel that is made from it."""
    pytest.importorskip("build", reason="`make test-slow` installs what builds the wheel")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheel and its dependencies."""
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
    assert "squeeze compress" in first.code
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
