"""Prose follows the rules of CONTRIBUTING.md. The exceptions are what there is, and only shrink."""

import statistics
from functools import cache
from pathlib import Path

from tests.words import faults, files, length, paragraphs, sentences

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs")]
EXCEPTIONS = {"squeeze": 26, "bench": 1, "training": 1, "tests": 111}  # most are lists of array arguments
MEDIAN = 15  # words of a sentence of a page


@cache
def faults_in(folder: str) -> list[str]:
    return [str(fault) for path in files([ROOT / folder]) for fault in faults(path)]


def test_pages_follow_the_rules():
    assert [str(fault) for path in files(PAGES) for fault in faults(path)] == []


def test_sentences_of_pages_are_short():
    lengths = [
        length(sentence)
        for path in files(PAGES)
        for _, paragraph in paragraphs(path.read_text("utf-8"))
        for sentence in sentences(paragraph)
    ]
    assert statistics.median(lengths) <= MEDIAN


def test_docstrings_and_messages_follow_the_rules():
    for folder, most in EXCEPTIONS.items():
        found = faults_in(folder)
        assert len(found) <= most, f"{folder}: {len(found)} faults\n" + "\n".join(found)


def test_no_docstring_of_the_package_is_a_fragment():
    assert not [fault for fault in faults_in("squeeze") if "a fragment" in fault or "no verb" in fault]


def test_what_the_rules_forbid_is_found(tmp_path):
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("# A title\n\nIt is smaller beside xz.\n\n```sh\nbeside\n```\n\n" + "word " * 31 + "end.\n")
    functions = 'def f():\n    """Of a file."""\n\n\ndef g():\n    """The size."""\n\n\n'
    module.write_text(functions + 'print("x is none of it")\n')
    assert [fault.line for fault in faults(page)] == [3, 9]
    assert [fault.line for fault in faults(module)] == [2, 2, 6, 9]
