"""Kernels of a library of machine code: the same bytes as those that numba compiles, and no numba."""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import types

from prebuilt import __main__ as building, emitting, kernels, objects, recording, signatures
from prebuilt.targets import TARGETS, digest
from squeeze.codecs.recurrent.weights import Scratch
from squeeze.codecs.stream import split
from squeeze.lm.arrays import Work
from squeeze.numerics import entries, int8_vectors, prebuilt
from squeeze.system import processor
from squeeze.version import __version__

ROOT = Path(__file__).parents[2]
WITHOUT_NUMBA = "import sys; sys.modules['numba'] = sys.modules['llvmlite'] = None\n"
SAME = """
import sys, squeeze
from pathlib import Path
from tests.makers import inputs

from squeeze.numerics.codegen import ir

golden, raw = Path("tests/golden"), inputs.words(4_000)
for level in map(int, sys.argv[1:]):
    kept = (golden / f"words.{level}.sqz").read_bytes()
    assert squeeze.decompress(kept) == raw, level
    assert squeeze.compress(raw, level) == squeeze.compress(raw, level, verify=False) == kept, level
print("numba" in sys.modules and sys.modules["numba"] is not None)
"""
ALL = """
import squeeze
from squeeze.numerics import prebuilt
from tests.golden.samples import STREAMS

for name, golden in STREAMS.items():
    if name.endswith(tuple(sys.argv[1:])):
        continue
    coded = golden.make()
    assert squeeze.decompress(coded) == golden.raw, name
    assert coded == open(f"tests/golden/{name}.sqz", "rb").read(), name
print(prebuilt.LIBRARY.name)
"""
EVERY_MODULE = """
from importlib import import_module
from pkgutil import walk_packages
from types import SimpleNamespace

import squeeze.numerics.prebuilt as prebuilt

sys.modules["torch"] = None
prebuilt.LIBRARY = SimpleNamespace(features=frozenset({"avx2"}), name="", entries=lambda kernel: [])
for room in ("codecs", "lm", "packing"):
    home = import_module(f"squeeze.{room}")
    for module in walk_packages(home.__path__, f"{home.__name__}."):
        try:
            import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name in ("torch", "triton", "llama_cpp"), error
"""


def package_with(folder: Path, libraries: Path) -> Path:
    """Return a folder with the package, as links, and libraries in it."""
    package = folder / "squeeze"
    package.mkdir()
    for path in (ROOT / "squeeze").iterdir():
        if path.name not in ("machine_code", "__pycache__"):
            (package / path.name).symlink_to(path)
    (package / "machine_code").symlink_to(libraries)
    (folder / "tests").symlink_to(ROOT / "tests")
    return folder


def run(
    folder: Path, code: str, *arguments: str, python: Sequence[str | Path] = (sys.executable,), **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "SQUEEZE_KERNELS"}
    settings = kept | {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **environment}
    command = [*python, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package and a small library for this processor."""
    if sys.platform != "linux" or not (find_spec("ziglang") or shutil.which("cc")):
        pytest.skip("no C compiler for a library")
    folder = tmp_path_factory.mktemp("prebuilt")
    target = f"linux-{os.uname().machine}-{processor.levels()[0]}"
    command = [sys.executable, "-m", "prebuilt", target, "-o", folder / "libraries", "--work", folder / "work"]
    command += ["--workload", "tests.makers.short_workload"]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    return package_with(folder, folder / "libraries")


@pytest.mark.slow
def test_files_are_the_same_without_numba(package):
    found = run(package, WITHOUT_NUMBA + SAME, "1", "3")
    assert (found.stdout, found.stderr) == ("False\n", "")


@pytest.mark.slow
def test_what_the_library_lacks_is_compiled(package):
    found = run(package, SAME, "1", "4")
    assert (found.stdout, found.stderr) == ("True\n", "")


@pytest.mark.slow
def test_what_the_library_lacks_names_the_extra_without_numba(package):
    found = run(package, WITHOUT_NUMBA + SAME, "4")
    assert found.stderr.splitlines()[-1] == (
        "squeeze.errors.PackageError: this needs code that is not in the package, and numba to compile it: "
        "pip install 'squeeze-neural[compile]'"
    )


@pytest.mark.slow
def test_a_library_can_be_ignored(package):
    found = run(package, SAME, "1", SQUEEZE_KERNELS="compile")
    assert (found.stdout, found.stderr) == ("True\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("level", processor.LEVELS)
def test_all_golden_files_are_the_same_without_numba(tmp_path, level):
    """Decode and encode with the libraries of `python -m prebuilt`, if they are there."""
    folder = ROOT / "build" / "machine_code"
    made_of = folder / f"linux-x86_64-{level}.sources"
    if not made_of.is_file() or made_of.read_text() != digest(ROOT):
        pytest.skip("no current library: python -m prebuilt")
    if level not in processor.levels():
        pytest.skip("another processor")
    found = run(package_with(tmp_path, folder), WITHOUT_NUMBA + ALL, SQUEEZE_KERNELS=level)
    assert (found.stdout, found.stderr) == (f"linux-x86_64-{level}\n", "")


@pytest.mark.slow
def test_all_golden_files_are_the_same_on_aarch64(tmp_path):
    """Decode and encode under emulation with the library of `python -m prebuilt`, if a system is there.

    A language model would take hours, so levels 7 to 9 are left out.
    """
    folder, system = ROOT / "build" / "machine_code", os.environ.get("SQUEEZE_AARCH64", "")
    made_of = folder / "linux-aarch64-v8.sources"
    if not system or not made_of.is_file() or made_of.read_text() != digest(ROOT):
        pytest.skip("no system or no current library: prebuilt/README.md")
    emulated = ("qemu-aarch64-static", "-cpu", "max", "-L", system, Path(system, "usr/bin/python3.11"))
    found = run(package_with(tmp_path, folder), WITHOUT_NUMBA + ALL, ".7", ".8", ".9", python=emulated)
    assert (found.stdout, found.stderr) == ("linux-aarch64-v8\n", "")


@pytest.mark.parametrize("missing", ["", "avx512_vnni", "avx2", "sse4_2"])
def test_a_processor_runs_the_levels_whose_instructions_it_has(missing, tmp_path, monkeypatch):
    flags = set(processor.LEVELS["v4"].split()) - {missing}
    list_ = tmp_path / "cpuinfo"
    list_.write_text(f"processor\t: 0\nflags\t\t: {' '.join(flags)}\n\nprocessor\t: 1\n")
    expected = {"": ["v4", "v3", "v2"], "avx512_vnni": ["v3", "v2"], "avx2": ["v2"], "sse4_2": []}
    assert processor.levels(list_, "x86_64") == expected[missing]
    assert processor.levels(tmp_path / "none", "x86_64") == []
    assert processor.levels(list_, "aarch64") == ["v8"]


def test_the_maker_of_a_processor_is_in_the_list(tmp_path):
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\n")
    assert processor.is_from_amd(listing) and not processor.is_from_amd(tmp_path / "none")


def test_each_level_of_processors_has_a_target():
    assert {name for name, target in TARGETS.items() if "x86_64" in name and not target.base} == {
        f"linux-x86_64-{level}" for level in processor.LEVELS
    }


def test_threads_use_one_table_of_a_kernel(monkeypatch):
    """Call from several threads at once: the table of the first may not be replaced while it is used."""
    made = []
    kernel = entries.Kernel(lambda: None)

    def slowly(code: object, rows: list, size: int) -> tuple:
        made.append(ctypes.c_int64())
        time.sleep(0.05)
        return (lambda *arguments: arguments[2]), 0, made[-1]

    library = SimpleNamespace(code=None, entries=lambda name: [])
    monkeypatch.setattr(prebuilt, "LIBRARY", library)
    monkeypatch.setattr(entries, "entry_table", slowly)
    with ThreadPoolExecutor(4) as pool:
        places = set(pool.map(lambda _: kernel(), range(4)))
    assert places == {ctypes.addressof(made[0])} and len(made) == 1


def test_kernels_that_a_process_was_in_are_left_in_a_file(tmp_path):
    path = tmp_path / "part.calls"
    calls = recording.Calls(path)
    with calls.of("squeeze.outer:code"):
        with calls.of("squeeze.inner:code"):
            assert kernels.running(path) == ["squeeze.inner:code"]
        assert kernels.running(path) == ["squeeze.outer:code"]
    assert kernels.running(path) == [] == kernels.running(tmp_path / "none")


def test_a_part_that_dies_is_named_and_the_others_are_run(tmp_path, monkeypatch):
    parts, ran = ["first", "second", "third"], []

    def start(phase: str, target: object, arguments: argparse.Namespace, part: str) -> str:
        ran.append(part)
        return "died of SIGSEGV" if part == "second" else ""

    monkeypatch.setattr(building, "_start", start)
    monkeypatch.setattr(building, "digest", lambda *arguments: "sources")
    monkeypatch.setattr(building, "_link", lambda *arguments: None)
    monkeypatch.setattr(building, "import_module", lambda name: SimpleNamespace(PARTS=dict.fromkeys(parts)))
    monkeypatch.setattr(kernels, "running", lambda path: ["squeeze.module:code"])
    arguments = argparse.Namespace(work=tmp_path, workload="work", processes=1)
    for expected in (parts, ["second"]):  # a later build runs only the part that died
        with pytest.raises(SystemExit) as caught:
            building._record(arguments)
        assert str(caught.value) == "part second of work died of SIGSEGV, in squeeze.module:code"
        assert ran == expected
        ran.clear()


def test_what_an_object_takes_from_elsewhere_is_found(tmp_path):
    body = "%y = call double @log2(double %x)\nret double %y"
    source = f"declare double @log2(double)\ndefine double @entry(double %x) {{\n{body}\n}}"
    for triple in ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"):
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        machine = llvm.Target.from_triple(triple).create_target_machine(reloc="pic")
        (tmp_path / "entry.o").write_bytes(machine.emit_object(llvm.parse_assembly(source)))
        assert objects.undefined(tmp_path / "entry.o") == {"log2"}


def test_words_of_all_widths_are_taken_if_one_is():
    words, name = types.Array(types.uint32, 1, "C"), "squeeze.packing.tensors.planes:cut_plane"
    recorded = [(name, (words, types.int64, types.int64, words)), ("a:b", (words,))]
    found = list(emitting._all_widths(recorded))
    assert [row for row in found if row[0] == "a:b"] == recorded[1:]
    every = types.uint8, types.uint16, types.uint32, types.uint64
    assert {(signature[0].dtype, signature[3].dtype) for kernel, signature in found if kernel == name} == {
        (values, plane) for values in every[1:] for plane in every[:3]
    }
    assert set(emitting._WORDS) <= kernels.wanted()


def test_arrays_of_products_have_the_type_of_the_processor(monkeypatch):
    """Compare signatures for VNNI, with bytes, and for x86-64-v3, whose calls are recorded, with 16 bits."""
    words, bytes_ = (types.Array(kind, 1, "C") for kind in (types.int16, types.int8))
    other = types.Tuple((words, types.int64))
    for name, fields in signatures.OPERANDS.items():
        if ":" in name:
            continue
        kind = {"Scratch": Scratch, "Work": Work}[name]
        assert set(fields) <= set(kind._fields)
        recorded = types.BaseTuple.from_types([words] * len(kind._fields), kind)
        monkeypatch.setattr(signatures, "ACTIVATION", np.int8)
        first, found = signatures.of_this_target("a:b", (other, recorded))
        assert first == other
        assert {field for field, item in zip(kind._fields, found, strict=True) if item == bytes_} == set(fields)
        monkeypatch.setattr(signatures, "ACTIVATION", np.int16)
        assert signatures.of_this_target("a:b", (other, recorded)) == (other, recorded)
    assert signatures.of_this_target("squeeze.lm.forward:cumulate", (words,) * 4)[2] == words


def test_a_library_and_numba_choose_the_same_products(monkeypatch):
    """Choose by the features of a library, without types of LLVM to compare."""
    for features, parts in (({"avx512vnni", "avx2"}, 2), ({"avx2"}, 1), (set(), 1)):
        monkeypatch.setattr(prebuilt, "LIBRARY", SimpleNamespace(features=features))
        assert int8_vectors.fastest().parts == parts


def test_a_copy_of_a_module_is_apart():
    before = dict(sys.modules)
    copy = entries.compiling_copy("squeeze.codecs.stream.split")
    assert copy is not split and copy.__name__ == split.__name__
    assert {name: module for name, module in sys.modules.items() if name in before} == before


def test_a_source_tree_has_no_library():
    assert prebuilt.LIBRARY is None


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (f"{__version__} avx\n", "file too short"),
        ("0.0.9 avx\n", "it is of version 0.0.9"),
        ("", "not enough values to unpack (expected at least 1, got 0)"),
    ],
    ids=["damaged", "version", "no table"],
)
def test_a_library_that_does_not_fit_is_told_of_and_left(table, reason, tmp_path, monkeypatch):
    said: list[str] = []
    library = tmp_path / f"{sys.platform}-{os.uname().machine}-{processor.levels()[0]}.so"
    library.write_bytes(b"")
    library.with_suffix(".txt").write_text(table)
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.setattr(prebuilt.notices, "mention", said.append)
    monkeypatch.delenv("SQUEEZE_KERNELS", raising=False)
    assert prebuilt._found() is None
    (sentence,) = said
    start = f"Warning: code is compiled at first use, since {library.name} cannot be used: "
    assert sentence.startswith(start) and sentence.endswith(reason) and "\n" not in sentence


def test_a_processor_of_no_level_compiles(tmp_path, monkeypatch):
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.setattr(prebuilt.processor, "levels", list)
    monkeypatch.delenv("SQUEEZE_KERNELS", raising=False)
    assert prebuilt._found() is None


def test_kernels_are_found_in_sources(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text(
        "quick = lossy_kernel(fastmath=True)\n"
        "@kernel\ndef one(x):\n    pass\n"
        "@quick\ndef two(x):\n    pass\n"
        "@inline\ndef step(x):\n    pass\n"
        "def make(kind):\n    def work(x):\n        pass\n    return callback(work)\n"
    )
    names = {"one", "two", "make.<locals>.work"}
    assert kernels.declared(tmp_path / "package") == {f"package.module:{name}" for name in names}


def test_the_workload_calls_every_kernel_that_libraries_have():
    """Compare the list of kernels with the sources. The build stops if the workload does not call one of them."""
    assert set(kernels.RECORDED.read_text().split()) == kernels.wanted(), (
        "call the kernel in prebuilt/workload.py and add it to prebuilt/kernels.txt, or name it in LEFT_OUT of "
        "prebuilt/kernels.py"
    )
    declared = kernels.declared(ROOT / "squeeze")
    assert all(any(name.startswith(start) for name in declared) for start in kernels.LEFT_OUT)


def test_modules_of_kernels_need_no_numba_with_a_library():
    found = run(ROOT, WITHOUT_NUMBA + EVERY_MODULE)
    assert (found.returncode, found.stderr) == (0, "")
