"""Values out of bounds, and of other types, in every format that commands read.

The file is at fault, not the call: a command ends with exit code 1 and one line of its own.
"""

import json
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from tests.makers.command import call
from tests.trust import kept, samples
from tests.trust.places import scalars

BAD: tuple[Any, ...] = (-1, 0, 1 << 70, 1e300, 0.5, True, None, "none", "", [], [[]], {}, {"a": 1})
OF_OTHERS = ("config.json", "config.json, guarded", "tokenizer_config.json", "generation_config.json")
NAMES = [name for name in kept.NAMES if name not in (*OF_OTHERS, "adapter_config.json")]  # that squeeze checks
FEW, MANY = 8, 400  # cases of a format that `make test` runs, and `make test-slow`


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_value_in_a_file_ends_with_exit_code_1(name, made, tmp_path, monkeypatch):
    cases = list(_cases(made[name]))
    step = max(len(cases) // FEW, 1)
    assert _faults(made[name], cases[zlib.crc32(name.encode()) % step :: step], tmp_path, monkeypatch) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_bad_values_end_with_exit_code_1(name, made, tmp_path, monkeypatch):
    cases = list(_cases(made[name]))
    assert _faults(made[name], cases[:: max(len(cases) // MANY, 1)], tmp_path, monkeypatch) == []


@pytest.mark.parametrize("setting", ["bits", "group_size"])
def test_a_recipe_is_at_fault_for_its_settings(setting, made, tmp_path, monkeypatch):
    """Write a recipe whose settings are checked as options are, whose exit code is 2 on the command line."""
    monkeypatch.chdir(tmp_path)
    made["recipe"].files(tmp_path)
    recipe = {"steps": [{"quantize": {"method": "rtn", setting: -3}}]}
    Path("a.yaml").write_text(json.dumps(recipe), "utf-8")
    ended = call("apply", "a.yaml", "model", "out")
    assert ended.exit_code == 1 and "step 1" in ended.stderr and not Path("out").exists()


def _cases(sample: samples.Sample) -> Iterator[tuple[str, Callable[[Any], Any], Any, tuple[str, ...]]]:
    """Yield each value of a file with each bad one, and the commands in turn."""
    commands = [command for command in sample.commands if isinstance(command, tuple)]
    for number, ((place, change), bad) in enumerate(product(scalars(sample.value), BAD)):
        yield place, change, bad, commands[(number + number // len(commands)) % len(commands)]


def _faults(sample, cases, here: Path, patch: pytest.MonkeyPatch) -> list[str]:
    found = []
    for place, change, bad, command in cases:
        work = here / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        patch.chdir(work)
        Path("t.txt").write_bytes(b"a text of some words, again and again. " * 20)
        sample.files(work)
        Path(sample.path).write_bytes(sample.to_bytes(change(bad)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ended = call(*command)
        own = ended.exception is None or isinstance(ended.exception, SystemExit)
        if ended.exit_code not in (0, 1, 3) or not own:
            said = ended.stderr.splitlines()[-1:] if own else repr(ended.exception)
            found.append(f"{place} = {bad!r}, {command}: exit code {ended.exit_code}, {said}")
    return found
