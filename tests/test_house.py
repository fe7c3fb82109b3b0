"""Counts of the code's layout. Each bound is the current number, and only shrinks."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.makers.cases import every

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "squeeze"
INSIDE_FUNCTIONS = 0.025  # share of internal imports: start-up, and circles that are none at run time
PACKAGES = 16
UNTESTED = 47  # modules that no test names
SHORT, SHORTEST = 8, 40  # modules with fewer lines than that, packages' own left out
LONG, LONGEST = 0, 60  # functions with more lines than that, besides commands and compiled ones
COMPILED = ("kernel", "inline", "jit", "compiled")  # their decorators: numba's and Triton's take flat arguments
Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_few_internal_imports_stand_inside_functions():
    read = [_read(module) for module in _modules()]
    inside, everywhere = sum(one.inside for one in read), sum(one.inside + one.outside for one in read)
    assert inside / everywhere <= INSIDE_FUNCTIONS, f"{inside} of {everywhere}"


def test_a_new_thought_has_a_room_in_a_package_that_is_there():
    packages = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    assert len(packages) <= PACKAGES, packages


def test_nearly_all_modules_are_named_by_a_test():
    tests = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    untested = [module for module in _modules() if module.stem[:2] != "__" and not _is_tested(module, tests)]
    assert len(untested) <= UNTESTED, untested


def test_modules_hold_a_thought():
    short = [str(module) for module in _modules() if module.stem[:2] != "__" and _lines(module) < SHORTEST]
    assert len(short) <= SHORT, short


def test_functions_are_seen_at_once():
    long = [
        f"{module.relative_to(PACKAGE)}:{name}"
        for module in _modules()
        if "commands" not in module.parts
        for name in _read(module).long
    ]
    assert len(long) <= LONG, long


def test_no_file_of_tests_runs_kernels_when_it_is_imported(kernels_at_import: list[str]):
    """Every worker imports all of them at the same time, and with an empty cache would compile the same kernels."""
    assert kernels_at_import == []


def test_the_makefile_names_tests_that_exist():
    named = re.findall(r"\btests/[\w/*.]+", (ROOT / "Makefile").read_text("utf-8"))
    assert named and [name for name in named if not list(ROOT.glob(name))] == []


@cache
def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@dataclass
class _Read:
    """Numbers of internal imports inside and outside functions, and the names of long functions."""

    inside: int = 0
    outside: int = 0
    long: list[str] = field(default_factory=list)

    def add(self, statements: Iterable[ast.AST], is_inside: bool = False) -> None:
        """Add statements and those in them. Expressions are skipped, since they hold neither."""
        for node in statements:
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "squeeze":
                self.inside, self.outside = self.inside + is_inside, self.outside + (not is_inside)
            if isinstance(node, Function) and node.end_lineno - node.lineno >= LONGEST and not _is_compiled(node):
                self.long.append(node.name)
            for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                found = getattr(node, name, [])
                if isinstance(found, list):
                    self.add(found, is_inside or isinstance(node, Function))


@cache
def _read(module: Path) -> _Read:
    """Read a module, whose tree is dropped: walking all trees while Python traces them takes seconds."""
    found = _Read()
    found.add(ast.parse(module.read_text("utf-8")).body)
    return found


def _lines(module: Path) -> int:
    return module.read_text("utf-8").count("\n")


def _is_compiled(function: Function) -> bool:
    names = {ast.unparse(decorator).partition("(")[0].rpartition(".")[2] for decorator in function.decorator_list}
    return bool(names & set(COMPILED))


def _is_tested(module: Path, tests: list[str]) -> bool:
    parts = module.relative_to(ROOT).with_suffix("").parts
    if (ROOT / "tests" / Path(*parts[1:-1]) / f"test_{module.stem}.py").exists():
        return True
    package, whole = ".".join(parts[:-1]), ".".join(parts)
    return any(whole in text or (f"from {package} import" in text and module.stem in text) for text in tests)


def test_slow_cases_stay_slow_and_are_not_counted():
    given = [pytest.param(1, 2, marks=pytest.mark.slow, id="a"), (3, 4), 5, pytest.param(6, id="b"), 7]
    found = every(2, given)
    assert [one.values for one in found] == [(1, 2), (3, 4), (5,), (6,), (7,)]
    assert [[mark.name for mark in one.marks] for one in found] == [["slow"], [], ["slow"], [], ["slow"]]
    assert [found[0].id, found[3].id] == ["a", "b"]
