"""The formats, mutated five times each, in the slow tests some hundred times; and the runner finds every fault."""

import faulthandler
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from squeeze.errors import FormatError
from tests.fuzz import mutations, report, running
from tests.fuzz.formats import NAMES, make
from tests.fuzz.judging import FAULTS, KINDS, REFUSED, SAME, TRUE, Verdict, Wrong, case
from tests.fuzz.running import Result

ROOT = Path(__file__).parents[2]
pytest.importorskip("transformers", reason="transformers is not installed")


class Hang(BaseException):
    """A case took too long."""


@pytest.fixture
def alarm():
    """Let the alarm raise, where the runner's ends a process."""

    def ring(signum, frame):
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("name", NAMES)
def test_mutated_files_are_refused_or_read_for_what_they_are(name, tmp_path, monkeypatch):
    (samples := tmp_path / "samples").mkdir()
    (box := tmp_path / "box").mkdir()
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(box)
    form = make(name, samples)
    verdicts = {number: running.judged(form, 0, number, box) for number in range(5)}
    assert {number: verdict for number, verdict in verdicts.items() if verdict.kind in FAULTS} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_hundreds_of_mutated_files_with_bounds_checked(name):
    command = [sys.executable, "-P", "-m", "tests.fuzz", name, "--cases", "300"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Toy:
    """A format whose cases are faults of every kind."""

    name = "toy"

    def mutate(self, random):
        return random.random()

    def read(self, case, folder):
        number = self.numbers[case]
        match number:
            case 1:
                raise Wrong("other bytes")
            case 2:
                return {}["key"]
            case 3:
                time.sleep(60)
            case 4:
                return bytearray(1 << 40) and SAME
            case 5:
                faulthandler.disable()  # its report would stand among those of the tests
                os.kill(os.getpid(), signal.SIGSEGV)
            case 6:
                (folder.parent / "stray").write_text("")
            case 7:
                raise FormatError("two\nlines")
            case 8:
                raise FormatError("is no toy")
        return TRUE if number == 9 else SAME

    def __init__(self):
        self.numbers = {case(self, 0, number): number for number in range(12)}


WANTED = [SAME, "wrong", "traceback", "hang", "memory", "crash", "wrong", "traceback", REFUSED, TRUE, SAME, SAME]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_fault_is_found_and_the_run_goes_on(monkeypatch):
    monkeypatch.setattr(running, "SECONDS", 0.3)
    result = running.run(Toy(), range(len(WANTED)), 0)
    assert result.cases == len(WANTED)
    assert {kind: result.counts[kind] for kind in KINDS} == {kind: WANTED.count(kind) for kind in KINDS}
    faults = [(number, kind) for number, kind in enumerate(WANTED) if kind in FAULTS]
    assert [(number, verdict.kind) for number, verdict in result.faults] == faults


def test_the_same_case_is_the_same_file(tmp_path):
    form = make("safetensors", tmp_path)
    assert [case(form, 3, number) for number in range(50)] == [case(form, 3, number) for number in range(50)]
    assert case(form, 3, 0) != case(form, 4, 0)


def test_json_with_parts_that_are_none():
    assert mutations.to_json({"a": mutations.Raw("NaN"), "b": [mutations.Raw("[[")]}) == '{"a": NaN, "b": [[[]}'


def test_the_table_goes_between_its_marks(tmp_path):
    page = tmp_path / "security.md"
    page.write_text("before\n<!-- fuzz -->\nold\n<!-- /fuzz -->\nafter\n")
    for name, count in (("toy", 5), ("other", 2), ("toy", 1)):
        result = Result(name)
        for number in range(count):
            result.note(number, Verdict(REFUSED))
        report.write_docs([result], page)
    text = page.read_text()
    assert text.startswith("before\n<!-- fuzz -->\n| format |") and text.endswith("<!-- /fuzz -->\nafter\n")
    assert re.findall(r"^\| \w+ \| \d+ \| \d+ \|", text, re.MULTILINE) == ["| toy | 1 | 1 |", "| other | 2 | 2 |"]


def test_the_page_has_a_row_for_every_format():
    text = report.DOCS.read_text()
    assert [name for name in NAMES if f"| {name} |" not in text] == []
