"""`python -m squeeze.reader`: the way back with as few packages as it can be."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import squeeze
from squeeze import reader
from tests.makers import inputs

DATA = inputs.words(2_000)
_ONLY = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {*sys.stdlib_module_names, "squeeze", "numpy", "numba", "llvmlite", "xxhash", "click"}:
            raise ModuleNotFoundError(f"{top} is refused", name=top)

sys.meta_path.insert(0, Refuse())
from squeeze.reader import main

main(sys.argv[1:], prog_name="reader")
"""


def alone(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run the reader in an environment with only the packages that it needs."""
    return subprocess.run([sys.executable, "-c", _ONLY, *map(str, arguments)], capture_output=True, check=False)


@pytest.mark.parametrize("level", [1, 3, 4, *(pytest.param(level, marks=pytest.mark.slow) for level in (2, 5, 6))])
def test_levels_1_to_6_need_four_packages(tmp_path: Path, level: int):
    (tmp_path / "note.sqz").write_bytes(squeeze.compress(DATA, level))
    done = alone("-c", tmp_path / "note.sqz")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == DATA


def test_levels_7_to_9_are_refused_in_one_line(tmp_path: Path):
    from squeeze.codecs.stream import container

    path = tmp_path / "note.sqz"
    fields = {"level": 8, "numerics": 1, "model": "m", "weights": "0" * 32}
    path.write_bytes(container.header_bytes(fields))
    done = alone(path)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"Error: {path}: needs ")
    assert done.stderr.decode().endswith(": levels 7 to 9 take all of squeeze: pip install squeeze-neural\n")


def test_it_writes_where_it_is_told(tmp_path: Path):
    path = tmp_path / "note.sqz"
    path.write_bytes(squeeze.compress(DATA, 1))
    for arguments, target in (([], "note"), (["-o", str(tmp_path / "other")], "other")):
        done = CliRunner().invoke(reader.main, [str(path), *arguments])
        assert (done.exit_code, done.output) == (0, "")
        assert (tmp_path / target).read_bytes() == DATA


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "note already exists; use -f to overwrite"),
        (["-f", "--max-output", "10"], "2,000 bytes or more would be written, and the limit is 10"),
        (["-f", "--memlimit", "10"], "a block of 2,000 bytes at level 1 needs"),
    ],
)
def test_what_goes_wrong_is_one_line(tmp_path: Path, arguments: list[str], said: str):
    path = tmp_path / "note.sqz"
    path.write_bytes(squeeze.compress(DATA, 1))
    (tmp_path / "note").write_bytes(b"before")
    done = CliRunner().invoke(reader.main, [str(path), *arguments])
    assert done.exit_code == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "note").read_bytes() == b"before"
