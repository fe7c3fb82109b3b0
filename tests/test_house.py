"""Counts of the code's layout. Each bound is the current number, and only shrinks."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "squeeze"
INSIDE_FUNCTIONS = 0.039  # share of internal imports: start-up, and circles that are none at run time
UNTESTED = 47  # modules that no test names
SHORT, SHORTEST = 8, 40  # modules with fewer lines than that, packages' own left out
LONG, LONGEST = 0, 60  # functions with more lines than that, besides commands and compiled ones
COMPILED = ("kernel", "inline", "jit", "compiled")  # their decorators: numba's and Triton's take flat arguments
Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_few_internal_imports_stand_inside_functions():
    everywhere, inside = 0, 0
    for module in _modules():
        tree = _parsed(module)
        within = {id(node) for function in _functions(tree) for node in ast.walk(function)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "squeeze":
                everywhere, inside = everywhere + 1, inside + (id(node) in within)
    assert inside / everywhere <= INSIDE_FUNCTIONS, f"{inside} of {everywhere}"


def test_nearly_all_modules_are_named_by_a_test():
    tests = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    untested = [module for module in _modules() if module.stem[:2] != "__" and not _is_tested(module, tests)]
    assert len(untested) <= UNTESTED, untested


def test_modules_hold_a_thought():
    short = [str(module) for module in _modules() if module.stem[:2] != "__" and _lines(module) < SHORTEST]
    assert len(short) <= SHORT, short


def test_functions_are_seen_at_once():
    long = [
        f"{module.relative_to(PACKAGE)}:{function.name}"
        for module in _modules()
        if "commands" not in module.parts
        for function in _functions(_parsed(module))
        if function.end_lineno - function.lineno >= LONGEST and not _is_compiled(function)
    ]
    assert len(long) <= LONG, long


@cache
def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def _parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text("utf-8"))


def _lines(module: Path) -> int:
    return module.read_text("utf-8").count("\n")


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _is_compiled(function: Function) -> bool:
    names = {ast.unparse(decorator).partition("(")[0].rpartition(".")[2] for decorator in function.decorator_list}
    return bool(names & set(COMPILED))


def _is_tested(module: Path, tests: list[str]) -> bool:
    parts = module.relative_to(ROOT).with_suffix("").parts
    if (ROOT / "tests" / Path(*parts[1:-1]) / f"test_{module.stem}.py").exists():
        return True
    package, whole = ".".join(parts[:-1]), ".".join(parts)
    return any(whole in text or (f"from {package} import" in text and module.stem in text) for text in tests)
