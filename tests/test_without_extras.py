"""Files at levels 1 to 9 need no torch, nor any other package of an extra; what needs one says which extra has it."""

import json
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import squeeze
from squeeze.system.extras import DISTRIBUTION, EXTRAS, how_to_install
from squeeze.system.notices import COMPILING
from tests.makers import command, tiny_models

ROOT = Path(__file__).parents[1]
_LEFT = {"numba", "tokenizers", "yaml"}
_REFUSED = sorted({"triton", *(package for packages in EXTRAS.values() for package in packages)} - _LEFT)
_WITHOUT = """
import json, sys
sys.modules |= dict.fromkeys(json.loads(sys.argv[1]))
from squeeze.cli import main
for arguments in json.loads(sys.argv[2]):
    main(arguments, prog_name="squeeze", standalone_mode=False)
"""

_PAGES = """
import json, sys
sys.modules |= dict.fromkeys(json.loads(sys.argv[1]))
import click
from squeeze.cli import COMMANDS, main
context = click.Context(main, **main.context_settings)
pages = {name for name, command in main.commands.items() if command.get_params(context)}
assert pages >= COMMANDS.keys()
"""
_ALL_FAIL = """
import json
from click.testing import CliRunner
from squeeze.cli import main
results = [(arguments, CliRunner().invoke(main, arguments)) for arguments in json.loads(sys.argv[1])]
print(json.dumps([(arguments, done.exit_code, done.stderr) for arguments, done in results]))
"""
_ON_MODELS = [
    ["quantize", "a", "b"],
    ["prune", "a", "b"],
    ["factorize", "a", "b"],
    ["experts", "a", "b", "--keep", "0.5"],
    ["apply", "recipe.yaml", "a", "b"],
    ["densify", "a", "b"],
    ["advise", "a"],
    ["eval", "a", "--text", "b"],
    ["generate", "a", "b"],
    ["kv-eval", "a", "--text", "b"],
    ["import", "smollm2", "b"],
    ["imatrix", "a", "-o", "b"],
    ["train", "--adapter", "a", "note.txt"],
    ["train", "--minutes", "1", "-o", "a", "note.txt"],
]


def without(*commands: tuple[str, ...], extra: str = "") -> str:
    """Run commands, one after the other, where no package of an extra but one can be imported; what they print.

    yaml is left, since gguf needs it, tokenizers, which levels 7 to 9 need, and numba, which a source tree needs. A
    first use says that it compiles.
    """
    done = without_errors(*commands, extra=extra)
    assert done.stderr in ("", f"{COMPILING}\n")
    return done.stdout


def without_errors(*commands: tuple[str, ...], extra: str = "") -> subprocess.CompletedProcess[str]:
    """Refuse commands that have something to record, too."""
    refused = [package for package in _REFUSED if package not in EXTRAS.get(extra, ())]
    code = [sys.executable, "-c", _WITHOUT, json.dumps(refused), json.dumps(commands)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def tiny(in_folder: None) -> Path:
    """Write a language model of a few thousand weights."""
    return tiny_models.write_folder(Path("tiny"), tiny_models.byte_level())


@pytest.mark.parametrize("level", [4, 7, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3, 5, 6, 8, 9))])
def test_files_need_no_extra(note: Path, tiny: Path, level: int):
    model = ("--model", str(tiny)) if level > 6 else ()
    without(
        ("compress", f"-{level}", *model, "note.txt"),
        ("test", *model, "note.txt.sqz"),
        ("list", "-v", "note.txt.sqz"),
        ("decompress", *model, "-o", "again.txt", "note.txt.sqz"),
    )
    assert Path("again.txt").read_bytes() == note.read_bytes()


def test_the_other_commands_on_files_need_no_extra(note: Path):
    said = without(
        ("train", "-4", "-o", "notes.sqzp", "note.txt"),
        ("compress", "-D", "notes.sqzp", "note.txt"),
        ("bench", "-1", "note.txt"),
        ("explain", "-1", "note.txt"),
        ("completion", "bash"),
        ("info",),
        ("--version",),
    )
    assert "gpus:             none" in said


def test_packing_without_loss_needs_no_extra(in_folder: None, tiny: Path):
    said = without(
        ("pack", "--json", "tiny", "packed"),
        ("pack", "--base", "packed", "tiny", "again"),
        ("verify", "--json", "packed"),
        ("history", "--json", "again"),
        ("unpack", "--json", "packed", "back"),
        *(("inspect", "--json", name) for name in ("tiny", "packed")),
    )
    packed, verified, *chain, unpacked, plain, coded = map(json.loads, said.splitlines())
    assert packed["tensors"] and verified["raw_size"] == unpacked["raw_size"] and len(chain) == 2
    assert plain["totals"] == coded["totals"]
    names = sorted(path.name for path in tiny.iterdir())
    assert [Path("back", name).read_bytes() for name in names] == [(tiny / name).read_bytes() for name in names]


def test_following_a_run_needs_no_extra(in_folder: None, tiny: Path):
    Path("run").mkdir()
    tiny.rename("run/checkpoint-1")
    follow = ("pack", "--follow", "--interval", "0.05", "--until-idle", "0.1", "-q")
    without((*follow, "run", "packed"), ("verify", "packed/checkpoint-1"))


def test_reports_of_packing_need_the_extra_of_reports_alone(in_folder: None, tiny: Path):
    pages = [(command, "--report", f"{command}.html", name) for command, name in (("verify", "p"), ("inspect", "tiny"))]
    Path("a.json").write_text(without(("pack", "--json", "--report", "pack.html", "tiny", "p"), extra="report"))
    without(*pages, ("report", "-q", "-o", "report.html", "a.json"), extra="report")
    assert {path.stem for path in Path().glob("*.html")} == {"pack", "verify", "inspect", "report"}


def test_a_quantised_folder_is_inspected_without_its_bits(in_folder: None, tiny: Path):
    config = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq", "bits": 4}}))
    said = without_errors(("inspect", "--json", "tiny"))
    assert json.loads(said.stdout)["totals"] and "quantised" not in json.loads(said.stdout)
    why = f"this needs torch, which is not installed: {how_to_install('models')}"
    assert said.stderr == f"Note: tiny: is quantised; the bits per weight are left out: {why}\n"


def test_names_of_files_need_no_extra():
    names = [name for name, home in squeeze.HOMES.items() if home.startswith(("squeeze.codecs", "squeeze.errors"))]
    code = f"import sys; sys.modules |= dict.fromkeys({_REFUSED})\nfrom squeeze import {', '.join(names)}"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_commands_on_models_name_the_extra(note: Path):
    """One process for all, since each is quick and Python's start is not."""
    code = f"import sys; sys.modules |= dict.fromkeys({_REFUSED})" + _ALL_FAIL
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(_ON_MODELS)], capture_output=True, text=True, check=True
    )
    said = f"Error: this needs torch, which is not installed: {how_to_install('models')}\n"
    assert json.loads(done.stdout) == [[arguments, 1, said] for arguments in _ON_MODELS]
    assert command.names() == ["note.txt"]


def test_functions_on_models_name_the_extra():
    lines = ["import sys, squeeze", "sys.modules['torch'] = None", "try: squeeze.quantize('a', out='b')"]
    code = "\n".join([*lines, "except ImportError as error: print(repr(error))"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message = f"this needs torch, which is not installed: {how_to_install('models')}"
    assert done.stdout == f"{squeeze.PackageError(message)!r}\n"
    assert issubclass(squeeze.PackageError, squeeze.SqueezeError)


def test_all_names_can_be_listed_without_extras():
    lines = ["import sys", f"sys.modules |= dict.fromkeys({_REFUSED})", "import squeeze", "from squeeze import *"]
    lines += ["print(hasattr(squeeze, 'quantize'), hasattr(squeeze, 'nothing'), quantize)"]
    lines += ["print(set(squeeze.__all__) <= set(dir(squeeze)), open is squeeze.open)"]
    lines += ["try: QuantizedKVCache.load('a')", "except squeeze.PackageError as error: print(error)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    said = f"this needs torch, which is not installed: {how_to_install('models')}"
    assert done.stdout.splitlines() == [f"True False <squeeze.quantize: {said}>", "True True", said]


def test_tasks_name_their_extra(monkeypatch: pytest.MonkeyPatch):
    tasks = pytest.importorskip("squeeze.recipes.measure.tasks", reason="torch is not installed")
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(squeeze.PackageError) as raised:
        tasks.Tasks.load(["hellaswag"])
    assert str(raised.value) == f"this needs lm_eval, which is not installed: {how_to_install('tasks')}"


def test_extras_are_those_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    modules = {
        "llama-cpp-python": "llama_cpp",
        "lm-eval": "lm_eval",
        "pyyaml": "yaml",
        "compressed-tensors": "compressed_tensors",
    }
    modules["vl-convert-python"] = "vl_convert"
    for extra, packages in EXTRAS.items():
        named = {Requirement(line).name for line in project["optional-dependencies"][extra]} - {DISTRIBUTION}
        assert sorted(modules.get(name, name) for name in named) == sorted(packages)


def test_manual_pages_need_what_a_build_requires_alone():
    """pip builds a wheel where nothing else is, and hatch_build.py makes pages of the help of all commands."""
    left = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    wanted = {"squeeze-neural"}
    while left:
        requirement = Requirement(left.pop())
        name = canonicalize_name(requirement.name)
        if name not in wanted and (not requirement.marker or requirement.marker.evaluate()):
            wanted.add(name)
            with suppress(metadata.PackageNotFoundError):  # hatchling itself
                left += metadata.requires(name) or ()
    owners = metadata.packages_distributions().items()
    refused = [module for module, names in owners if not wanted & set(map(canonicalize_name, names))]
    words = [sys.executable, "-c", _PAGES, json.dumps(refused)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
