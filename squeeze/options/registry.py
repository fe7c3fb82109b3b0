"""Methods by name. A registry is a plain dict of references: classes, or texts such as "squeeze.quant.gptq:GPTQ", which
are imported when they are used.

What options a method has is asked for by `--help`, too, which should not wait seconds for torch. So they are read from
the source of a class that is not imported: of each field that calls `option`, the arguments that are literals.
"""

import ast
import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from squeeze.options.option import FACTS, UNTOLD, Option, of, type_names

__all__ = ["Reference", "in_source", "load", "options_of"]

Reference = type | str


def load(reference: Reference) -> type:
    """The class."""
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    value: type = getattr(import_module(module), name)
    return value


def options_of(reference: Reference) -> tuple[Option, ...]:
    """The options of a class, which is not imported where its source tells them."""
    if isinstance(reference, str) and reference.partition(":")[0] not in sys.modules:
        declared = in_source(reference)
        if declared is not None:
            return declared
    return of(load(reference))


@lru_cache(maxsize=256)
def in_source(reference: str) -> tuple[Option, ...] | None:
    """The options that a class's source declares, its parents' among them; None where there is no source."""
    name, _, class_name = reference.partition(":")
    tree = _tree(name)
    if tree is None:
        return None
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    homes = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == name.split(".")[0]
        for alias in node.names
    }
    if class_name not in classes:
        return None
    options: dict[str, Option] = {}
    for base in reversed(classes[class_name].bases):
        parent = base.id if isinstance(base, ast.Name) else ""
        home = f"{name}:{parent}" if parent in classes else homes.get(parent)
        options |= {one.name: one for one in (in_source(home) or () if home else ())}
    for node in classes[class_name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared = _declared(node.target.id, node.annotation, node.value)
            if declared:
                options[declared.name] = declared
            else:
                options.pop(node.target.id, None)
    return tuple(options.values())


@lru_cache(maxsize=256)
def _tree(module: str) -> ast.Module | None:
    spec = find_spec(module)
    source = getattr(spec.loader, "get_source", lambda name: None)(module) if spec else None
    return None if source is None else ast.parse(source)


def _declared(name: str, annotation: ast.expr, value: ast.expr | None) -> Option | None:
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "option"):
        return None
    default, help = value.args
    facts = {word.arg: _literal(word.value) for word in value.keywords if word.arg in FACTS}
    stated: dict[str, Any] = {key: fact for key, fact in facts.items() if key and fact is not UNTOLD}
    return Option(name, type_names(ast.unparse(annotation)), _literal(default), _literal(help), **stated)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNTOLD
