"""The folder of compiled code follows the content of every file that compiled code comes from, wherever it lies."""

import dis
import gc
import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError

import squeeze
from squeeze.codecs.bytewise import coder
from squeeze.kv import unpacking
from squeeze.numerics import code_cache, jit
from squeeze.system.notices import COMPILING

PACKAGE = Path(squeeze.__file__).parent
FILES = {
    "__init__.py": "from squeeze.plain import everything\n",
    "numerics/__init__.py": "",
    "numerics/jit.py": "",
    "numerics/compiling.py": "def kernel(function): ...\n",
    "numerics/sizes.py": "WIDTH = 16\n",
    "models/presets.py": "from squeeze.numerics.sizes import WIDTH\n\nROWS = 2 * WIDTH\n",
    "models/mixer.py": (
        "from squeeze.models import presets\nfrom squeeze.numerics.jit import (\n    inline,\n    kernel,\n)\n\n\n"
        "@kernel\ndef mix():\n    return presets.ROWS\n"
    ),
    "plain.py": "everything = 1\n",
}


@pytest.fixture
def package(tmp_path):
    """Write a package named like ours: a compiled file, two plain ones that it imports, and one that it does not."""
    for name, text in FILES.items():
        path = tmp_path / "squeeze" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "squeeze"


def sources(package, file="models/mixer.py") -> dict[str, str]:
    """Anew, as in another process."""
    code_cache._read.cache_clear()
    code_cache._file.cache_clear()
    found = code_cache.compiled_sources(package / file, package)
    return {path.relative_to(package).as_posix(): text for path, text in found.items()}


def test_sources_are_what_compiles_and_all_that_it_imports(package):
    assert set(sources(package)) == set(FILES) - {"__init__.py", "numerics/__init__.py", "plain.py"}


def test_files_elsewhere_are_followed_into_the_package(package, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("from squeeze.models import presets\n")
    assert {other, package / "numerics/sizes.py"} <= set(code_cache.compiled_sources(other, package))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("models/mixer.py", "presets.ROWS", "presets.ROWS + 1"),
        ("models/presets.py", "2 * WIDTH", "3 * WIDTH"),
        ("numerics/sizes.py", "16", "32"),
        ("numerics/compiling.py", "...", "return function"),
    ],
    ids=["compiled", "imported", "imported by what is imported", "the decorators"],
)
def test_a_constant_reached_through_imports_changes_the_digest(package, name, old, new):
    before = sources(package)
    path = package / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert sources(package) != before


def test_what_no_compiled_code_reaches_changes_nothing(package):
    before = sources(package)
    (package / "plain.py").write_text("everything = 2\n")
    (package / "__init__.py").write_text("")
    (package / "models/other.py").write_text((package / "models/mixer.py").read_text())
    assert sources(package) == before


@pytest.mark.parametrize("folder", ["", "models/deep/deeper"])
def test_a_moved_file_is_still_guarded(package, folder):
    """Its text is read at its new place, and so is what it imports."""
    target = package / folder
    target.mkdir(parents=True, exist_ok=True)
    moved = (package / "models/mixer.py").rename(target / "mixing.py")
    name = moved.relative_to(package).as_posix()
    before = sources(package, name)
    assert {name, "models/presets.py", "numerics/sizes.py"} <= set(before)
    moved.write_text(moved.read_text().replace("presets.ROWS", "presets.ROWS + 1"))
    after = sources(package, name)
    assert after != before
    (package / "numerics/sizes.py").write_text("WIDTH = 64\n")
    assert sources(package, name) != after


def test_moved_constants_are_followed_through_the_import_that_moved_with_them(package):
    (package / "models/presets.py").rename(package / "widths.py")
    mixer = package / "models/mixer.py"
    mixer.write_text(
        mixer.read_text().replace("from squeeze.models import presets", "from squeeze import widths as presets")
    )
    before = sources(package)
    assert "widths.py" in before
    (package / "widths.py").write_text("ROWS = 5\n")
    assert sources(package) != before


def test_entry_points_are_cached_in_the_folder_of_their_sources():
    for kernel in (unpacking._unpack, coder.code):
        folder = code_cache.cache_folder(Path(kernel.py_func.__code__.co_filename))
        assert Path(kernel._cache._cache_path).is_relative_to(folder)
        assert folder.parent == code_cache.cache_root()
    found = sources(PACKAGE, "codecs/bytewise/coder.py")
    assert {"codecs/bytewise/model.py", "numerics/bitmodels/coder.py", "numerics/logistic.py"} <= set(found)
    assert not any(name.startswith("kernels/") for name in found)


def test_no_other_file_caches_compiled_code():
    users = [path for path in PACKAGE.rglob("*.py") if "njit" in path.read_text("utf-8")]
    assert users == [PACKAGE / "numerics" / "compiling.py"]


@jit.lossy_kernel(fastmath=False)
def reversed_copy(x):
    out = np.empty_like(x)
    for i in range(x.size):
        out[i] = x[x.size - 1 - i]
    return out


def test_a_lossy_kernel_may_allocate():
    assert reversed_copy(np.arange(3)).tolist() == [2, 1, 0]


ROOMS = ("codecs", "lm", "numerics")
PASSED_ON = {"_nothing"}  # to compiled code, and not called
FOR_GPUS = {"squeeze.codecs.tokenwise.cuda"}  # numba-cuda compiles its functions of Python, so they may call steps


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the Python functions of a module and its classes."""
    for value in vars(module).values():
        for member in vars(value).values() if isinstance(value, type) else [value]:
            inner = getattr(member, "fget", getattr(member, "func", member))
            one = getattr(inner, "__func__", inner)
            if isinstance(one, FunctionType) and one.__module__ == module.__name__:
                yield one


def calls(code: CodeType) -> Iterator[tuple[str, str]]:
    """Names that a function takes of its module, and of each the attribute that it asks for, or none."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PUSH_NULL")]
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval, after.argval if after and after.opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from calls(constant)


def test_garbage_is_collected_after_compiling_as_before():
    @jit.kernel
    def add(numbers):
        return numbers[0] + 1

    before = gc.get_threshold()
    assert add(np.ones(1)) == 2
    with pytest.raises(TypingError):
        add(object())
    assert gc.get_threshold() == before


@pytest.mark.parametrize("room", ROOMS)
def test_no_function_of_python_calls_a_step(room):
    """It would end the process: a step can be called by compiled code alone."""
    package = importlib.import_module(f"squeeze.{room}")
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if found.name in FOR_GPUS:
            continue
        module = importlib.import_module(found.name)
        for function in functions(module):
            for name, attribute in calls(function.__code__):
                value = function.__globals__.get(name)
                value = getattr(value, attribute, None) if isinstance(value, ModuleType) else value
                is_step = isinstance(value, Dispatcher) and "no_cpython_wrapper" in value.targetoptions
                assert not is_step or name in PASSED_ON, (function, name, attribute)


DOUBLING = """
import numpy as np
from squeeze.numerics.jit import kernel


@kernel
def doubled(values):
    for i in range(len(values)):
        values[i] *= 2


doubled(np.arange(3))
"""


@pytest.mark.parametrize(
    "work",
    ["import doubling", pytest.param("import squeeze; squeeze.compress(b'text', level=1)", marks=pytest.mark.slow)],
    ids=["a kernel", "all of a level"],
)
def test_compiled_code_loads_without_what_compiles(tmp_path, work):
    """Half of what a small file costs is the start of numba."""
    (tmp_path / "doubling.py").write_text(DOUBLING)
    run = f"import sys; {work}; print('numba.np.arraymath' in sys.modules)"
    found = [
        subprocess.run(
            [sys.executable, "-c", run],
            env={
                **os.environ,
                **{"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""},
                "PYTHONPATH": f"{PACKAGE.parent}:{tmp_path}",
            },
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()[-1]
        for _ in range(2)
    ]
    assert found == ["True", "False"]


FACTORY = """
from squeeze.numerics.jit import part


def sums(times):
    @part
    def total(a):
        found = 0
        for i in range(a.size):
            {terms}
        return found * times

    return total


double, treble = sums(2), sums(3)
"""
KERNELS = """
from squeeze.numerics.jit import kernel
from parts import {name}


@kernel
def run(a):
    return {name}(a) + {name}(a[1:])
"""
USE = """
import sys
from importlib import import_module

import numpy as np

a = np.arange(5)
print(*(import_module(name).run(a) for name in sys.argv[1:]))
"""


def test_kernels_from_the_cache_call_their_own_parts(tmp_path):
    """Two parts of one name were merged in a process that loaded kernels which two others had compiled."""
    terms = "; ".join(f"found += a[i] * {j} + a[(i + {j}) % a.size] // (1 + abs(a[i] - {j}))" for j in range(40))
    (tmp_path / "parts.py").write_text(FACTORY.format(terms=terms))
    for name in ("double", "treble"):
        (tmp_path / f"of_{name}.py").write_text(KERNELS.format(name=name))
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE.parent}:{tmp_path}", "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(*names: str) -> list[str]:
        command = [sys.executable, "-c", USE, *names]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    (double,), (treble,) = run("of_double"), run("of_treble")
    assert 3 * int(double) == 2 * int(treble) != 0
    assert run("of_double", "of_treble") == [double, treble]


SOURCE = """
import numpy as np
from squeeze.numerics.jit import callback, kernel
from squeeze.system import notices

notices.listen(print)


@kernel
def doubled(values):
    for i in range(len(values)):
        values[i] *= 2


@callback
def nothing(pointer):
    pass


values = np.arange(3)
doubled(values)
print(values.tolist(), nothing.address > 0)
"""


def runs(folder: Path, **options: Any) -> str:
    """Return what a process prints that compiles or loads SOURCE with its cache in `folder`."""
    path = folder / "own.py"
    path.write_text(SOURCE)
    (folder / "temporary").mkdir(exist_ok=True)
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "temporary")}
    environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, path]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, **options).stdout


def test_compiled_code_that_a_crash_cut_off_is_made_again(tmp_path):
    assert runs(tmp_path) == f"{COMPILING}\n[0, 2, 4] True\n"
    for ending, kept in (("nbi", 0), ("nbc", 40)):
        for path in tmp_path.rglob(f"*.{ending}"):
            path.write_bytes(path.read_bytes()[:kept])
        assert runs(tmp_path) == f"{COMPILING}\n[0, 2, 4] True\n"
    assert runs(tmp_path) == "[0, 2, 4] True\n"


def test_no_other_user_can_write_to_the_cache(tmp_path):
    runs(tmp_path, umask=0)
    made = [tmp_path / "cache", *(tmp_path / "cache").glob("squeeze"), *(tmp_path / "cache").glob("squeeze/numba/*")]
    assert len(made) == 3 and all(folder.stat().st_mode & 0o777 == 0o700 for folder in made)


def test_code_is_not_loaded_from_where_others_can_write(tmp_path):
    runs(tmp_path)
    (folder,) = (tmp_path / "cache" / "squeeze" / "numba").iterdir()
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    folder.chmod(0o777)
    said = (
        f"Warning: compiled code is kept in {tmp_path}/temporary/squeeze-numba-{os.geteuid()}, not in the cache: other "
        f"users may write to {folder}; delete {folder.parent}, or set XDG_CACHE_HOME to a folder of your own\n"
    )
    assert runs(tmp_path) == f"{said}{COMPILING}\n[0, 2, 4] True\n"
    assert runs(tmp_path) == f"{said}[0, 2, 4] True\n"
    assert kept == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_cache_that_cannot_be_written_is_mentioned(tmp_path):
    (tmp_path / "cache").write_text("in the way")
    said = f"Warning: compiled code is kept in {tmp_path}/temporary/squeeze-numba-{os.geteuid()}, not in the cache: "
    assert runs(tmp_path).startswith(said)
    assert runs(tmp_path).splitlines()[1:] == ["[0, 2, 4] True"]


def test_an_account_without_a_home_shares_one_folder(tmp_path, monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    code_cache._temporary.cache_clear()
    folder = code_cache.cache_root()
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    code_cache._temporary.cache_clear()
    assert code_cache.cache_root() == folder
    code_cache._temporary.cache_clear()
    folder.chmod(0o777)  # anybody may have put code there
    assert code_cache.cache_root() != folder
    code_cache._temporary.cache_clear()
