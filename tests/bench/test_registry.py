"""The registry of benchmarks is complete, loads, and explains itself without torch."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import main, parser
from bench.registry import ENTRIES

MEASURES = Path(__file__).parents[2] / "bench" / "measures"


def test_every_module_that_measures_is_an_entry_and_every_entry_has_one() -> None:
    modules = {f"bench.measures.{path.stem}" for path in MEASURES.glob("*.py") if path.stem != "__init__"}
    assert {entry.measuring(name) for name, entry in ENTRIES.items()} == modules


def test_tables_have_names_of_their_own() -> None:
    names = [table for entry in ENTRIES.values() for table in entry.tables]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_loads(name: str) -> None:
    if name == "lm-speed" and importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama.cpp is not installed")
    assert callable(ENTRIES[name].rows(name))


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser(name, ENTRIES[name]).parse_args(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"python -m bench {name}" in shown
    assert " ".join(ENTRIES[name].measures.split()[1:4]) in shown


@pytest.mark.parametrize("name", ENTRIES)
def test_a_quick_form_is_understood(name: str) -> None:
    if (words := ENTRIES[name].quick) is not None:
        parser(name, ENTRIES[name]).parse_args(words.split())


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = {
        line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ") and line.strip()
    }
    assert set(ENTRIES) <= listed


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(SystemExit, match="there is no benchmark 'speling'"):
        main(["speling"])


def test_list_and_help_need_no_torch() -> None:
    code = (
        "import contextlib, io, json, sys\n"
        "from bench.__main__ import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main([])\n"
        "    main(['quantize', '--help'])\n"
        "print(json.dumps([name for name in ('torch', 'numba', 'matplotlib') if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=MEASURES.parents[1]
    )
    assert json.loads(done.stdout) == []
