"""Messages of the library, which name arguments and never options of the command line."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import squeeze
from squeeze.commands.echo import explain
from squeeze.errors import SqueezeError

_OPTION = re.compile(r"(?<![\w-])--[a-z]|\s-[A-Za-z]\b")
_FOLDER = Path(squeeze.__file__).parent
_OF_OTHERS = {  # text that names options of other programs, or of a command that is run in a process of its own
    "checkpoint/weight_files.py",
    "kv/contract.py",
    "integrations/sglang.py",
    "lm/models.py",
    "lm/sources.py",
    "lm/tokenizer.py",
    "reader.py",
    "recipes/apply.py",
    "recipes/measure/benchmark.py",
    "recipes/options.py",
    "system/files.py",
    "system/remote_path.py",
}


def test_no_message_of_the_library_names_an_option():
    names = [path.relative_to(_FOLDER) for path in _FOLDER.rglob("*.py")]
    told = {
        f"{name}:{line}: {text}"
        for name in names
        if name.parts[0] not in ("commands", "cli.py") and str(name) not in _OF_OTHERS
        for line, text in _texts(_FOLDER / name)
        if _OPTION.search(text) and " " in text and "`squeeze " not in text
    }
    assert told == set()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("name it with `dictionary`", "name it with -D"),
        ("use `device='cpu'`", "use --device cpu"),
        ("go on with `resume=True`, or start over with `overwrite=True`", "go on with --resume, or start over with -f"),
        ("raise it with `limits.memory`", "raise it with --memlimit"),
        ("`task_folder` takes local tasks", "--task-folder takes local tasks"),
        ("run `pip install torch`", "run `pip install torch`"),
    ],
)
def test_the_command_line_shows_arguments_as_options(said: str, shown: str):
    assert explain(SqueezeError(said)) == shown


def test_every_error_is_made_of_one_text():
    """So that a place that knows the file's name can put it before what was said."""
    texts = (module.read_text("utf-8") for module in _FOLDER.rglob("*.py"))
    nodes = (node for text in texts if "Error(" in text and "class " in text for node in ast.walk(ast.parse(text)))
    errors = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name.endswith("Error")]
    with_more = {error.name for error in errors for part in error.body if getattr(part, "name", "") == "__init__"}
    assert len(errors) > 20 and with_more == set()


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Strings of a module that are no docstrings, with their lines."""
    tree = ast.parse(path.read_text("utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and _has_text(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def _has_text(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return bool(node.body) and isinstance(node.body[0], ast.Expr)
