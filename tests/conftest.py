"""Fixtures that several test files share."""

import gc
import os
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # unset, it warns
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")  # takes a thirtieth of compiling
if "PYTEST_XDIST_WORKER" in os.environ:  # one of several beside each other: each has a core, and no more
    os.environ |= {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "10000"}
os.environ.setdefault("RAY_worker_niceness", "0")  # else Ray's processes wait for all other tests

import pytest
from hypothesis import settings

from squeeze.system import notices
from tests.makers import command

ROOT = Path(__file__).parent.parent
os.environ.setdefault("SQUEEZE_CACHE", str(ROOT / ".pytest_cache" / "squeeze"))  # the models of tests stay apart
os.environ["PYTHONPATH"] = str(ROOT)  # `python -m squeeze` runs from any folder, installed or not
os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # else every command, and every worker, would compile all sources again
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # what runs in the background, as tests may, ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # and with nohup this one
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("compiled", deadline=None)  # a first call compiles
settings.load_profile("compiled")


ran = pytest.StashKey[list[str]]()
ENGINE = ("tests/codecs/tokenwise/", "tests/lm/", "tests/test_golden.py")
FILES = "tests/codecs/"
LAST = "tests/cluster/test_ray_loading.py"  # with compiled code, so that the cluster's workers need not compile


def pytest_collectstart() -> None:
    gc.disable()  # until all tests are collected: nearly everything that is made until then stays


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those last that want compiled code. Tests marked cuda need compiled kernels, so their own process, and a
    GPU."""
    items.sort(key=lambda item: item.nodeid.startswith(LAST))
    wanted = [item for item in items if item.get_closest_marker("cuda")]
    if wanted and not (os.environ["TRITON_INTERPRET"] == "0" and cuda_is_at_hand()):
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="`make gpu` runs these on a machine with a GPU"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the tests of a file, which share what they make, to one worker.

    One worker also runs all that need the exact engine, which takes longest to compile. One of two takes all that needs
    the kernels of files. Groups of xdist's own are of no effect: pytest 9.2 keeps the ids that xdist 3.8 changes.
    """
    from xdist.scheduler import LoadScopeScheduling

    engine = (*ENGINE, LAST, *([FILES] if len(config.option.tx) == 2 else []))

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "engine" if nodeid.startswith(engine) else nodeid.partition("::")[0]

    return ByFile(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which kernels ran when test files were imported: every worker compiles them, at the same time."""
    gc.freeze()  # tests and libraries, which collections would go through again and again
    gc.enable()
    gc.set_threshold(10_000, 20, 20)
    compiling = sys.modules.get("squeeze.numerics.compiling")
    kernels = compiling.KERNELS.items() if compiling else ()
    session.config.stash[ran] = [name for name, kernel in kernels if getattr(kernel, "signatures", None)]


@pytest.fixture
def kernels_at_import(pytestconfig: pytest.Config) -> list[str]:
    return pytestconfig.stash[ran]


def cuda_is_at_hand() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_runtest_setup() -> None:
    """Compile in silence: whether a command compiles depends on what ran before. test_jit.py tests what is said then.

    A hook costs every test less than a fixture does.
    """
    notices._said = {notices.COMPILING}


def pytest_runtest_teardown() -> None:
    """Keep to one core, whatever a command did: threads of torch in several workers wait for each other, many times as
    long."""
    torch = sys.modules.get("torch")
    if torch and "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an untrained network of one of networks.KINDS."""
    from tests.makers import networks

    return cache(lambda kind: networks.save(kind, tmp_path_factory.mktemp("models") / kind))


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in the test's own folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def note(in_folder: None) -> Path:
    """A text file in the test's own folder."""
    path = Path("note.txt")
    path.write_bytes(command.TEXT)
    return path


@pytest.fixture
def packed(note: Path) -> Path:
    """The text file, compressed beside itself at level 1."""
    command.run("compress", "-1", note)
    return Path("note.txt.sqz")
