"""The folder of compiled code follows the content of every file that compiled code comes from, wherever it lies."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import squeeze
from squeeze.kernels.lowrank import cpu
from squeeze.numerics import jit

PACKAGE = Path(squeeze.__file__).parent
FILES = {
    "__init__.py": "from squeeze.plain import everything\n",
    "numerics/__init__.py": "",
    "numerics/jit.py": "def kernel(function): ...\n",
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
    """A package of the same name as ours: two plain files that a compiled one imports, and one that none does."""
    for name, text in FILES.items():
        path = tmp_path / "squeeze" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "squeeze"


def digest(package) -> str:
    return hashlib.sha256(repr(sorted(jit.compiled_sources(package).items())).encode()).hexdigest()


def test_sources_are_what_compiles_and_all_that_it_imports(package):
    assert sorted(jit.compiled_sources(package)) == [
        "squeeze.models.mixer",
        "squeeze.models.presets",
        "squeeze.numerics.jit",
        "squeeze.numerics.sizes",
    ]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("models/mixer.py", "presets.ROWS", "presets.ROWS + 1"),
        ("models/presets.py", "2 * WIDTH", "3 * WIDTH"),
        ("numerics/sizes.py", "16", "32"),
        ("numerics/jit.py", "...", "return function"),
    ],
    ids=["compiled", "imported", "imported by what is imported", "the decorators"],
)
def test_a_constant_reached_through_imports_changes_the_digest(package, name, old, new):
    before = digest(package)
    path = package / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert digest(package) != before


def test_what_no_compiled_code_reaches_changes_nothing(package):
    before = digest(package)
    (package / "plain.py").write_text("everything = 2\n")
    (package / "__init__.py").write_text("")
    assert digest(package) == before


@pytest.mark.parametrize("folder", ["", "models/deep/deeper"])
def test_a_moved_file_is_still_guarded(package, folder):
    """Its text is read at its new place, and so is what it imports."""
    target = package / folder
    target.mkdir(parents=True, exist_ok=True)
    moved = (package / "models/mixer.py").rename(target / "mixing.py")
    module = ".".join(["squeeze", *folder.split("/"), "mixing"]) if folder else "squeeze.mixing"
    assert {module, "squeeze.models.presets", "squeeze.numerics.sizes"} <= set(jit.compiled_sources(package))
    before = digest(package)
    moved.write_text(moved.read_text().replace("presets.ROWS", "presets.ROWS + 1"))
    after = digest(package)
    assert after != before
    (package / "numerics/sizes.py").write_text("WIDTH = 64\n")
    assert digest(package) != after


def test_moved_constants_are_followed_through_the_import_that_moved_with_them(package):
    (package / "models/presets.py").rename(package / "widths.py")
    mixer = package / "models/mixer.py"
    mixer.write_text(
        mixer.read_text().replace("from squeeze.models import presets", "from squeeze import widths as presets")
    )
    assert "squeeze.widths" in jit.compiled_sources(package)
    before = digest(package)
    (package / "widths.py").write_text("ROWS = 5\n")
    assert digest(package) != before


def test_lossy_kernels_are_guarded_too():
    sources = jit.compiled_sources(PACKAGE)
    assert {"squeeze.kernels.kv_attention.loops", "squeeze.kernels.lowrank.cpu", "squeeze.kv.unpacking"} <= set(sources)
    assert Path(cpu._halves._cache._cache_path).is_relative_to(jit.cache_folder())


def test_no_other_file_caches_compiled_code():
    users = [path for path in PACKAGE.rglob("*.py") if "njit" in path.read_text("utf-8")]
    assert users == [PACKAGE / "numerics" / "jit.py"]


@jit.lossy_kernel(fastmath=False)
def reversed_copy(x):
    out = np.empty_like(x)
    for i in range(x.size):
        out[i] = x[x.size - 1 - i]
    return out


def test_a_lossy_kernel_may_allocate():
    assert reversed_copy(np.arange(3)).tolist() == [2, 1, 0]


def test_compiled_code_is_cached_under_a_name_made_from_the_sources():
    folder = jit.cache_folder()
    assert folder.is_dir()
    assert len(folder.name) == 16
