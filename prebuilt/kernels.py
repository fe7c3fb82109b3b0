"""The kernels that the sources declare, and those that libraries leave out, with the reasons."""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

from prebuilt.targets import ROOT

__all__ = ["LEFT_OUT", "RECORDED", "check", "declared", "running", "wanted"]

RECORDED = Path(__file__).with_name("kernels.txt")  # those that the workload has called, one a line
_MARKS = ("kernel", "lossy_kernel", "callback")
_INNER = "other kernels alone call it, of which it becomes a part"
_MODELS = "needs the extra `models`, which installs numba"
_LLAMA = "needs the extra `llamacpp`, which installs numba"
# How names begin of what is compiled at first use even with a library, and why.
LEFT_OUT = {
    "squeeze.codecs.stream.blocks:_put24": _INNER,
    "squeeze.packing.deltas.": _MODELS,
    "squeeze.kernels.": _MODELS,
    "squeeze.kv.": _MODELS,
    "squeeze.quant.": _MODELS,
    "squeeze.numerics.exact:cumulate_row": _LLAMA,
    "squeeze.packing.device_decode.": f"C calls it from threads of torch: {_MODELS}",
    "squeeze.packing.tensors.float_layout:_sum_of_logs": _INNER,
    "squeeze.packing.tensors.float_models:_code_length": _INNER,
    "squeeze.packing.tensors.float_models:_sum_groups": _INNER,
    "squeeze.packing.tensors.planes:_cost": _INNER,
    "squeeze.packing.tensors.rans:decode_segments": _INNER,
    "squeeze.packing.tensors.rans:decoding_table": _INNER,
}


def wanted() -> set[str]:
    """Return the kernels that libraries have, as module:name."""
    return {name for name in declared(ROOT / "squeeze") if not name.startswith(tuple(LEFT_OUT))}


def check(found: set[str], workload: str) -> None:
    """Write the list of kernels that a workload has called, or exit with an error if it left out some."""
    if missing := wanted().difference(found):
        raise SystemExit(f"{workload} does not call {', '.join(sorted(missing))}: add calls, or an entry of LEFT_OUT")
    RECORDED.write_text("".join(f"{name}\n" for name in sorted(wanted())))


def running(path: Path) -> list[str]:
    """Return the kernels that threads of a process were in when it ended, from the file of `recording.Calls`."""
    rows = path.read_bytes() if path.is_file() else b""
    return sorted({row.decode() for row in rows.split(b"\0") if row})


def declared(package: Path) -> set[str]:
    """Return the kernels in the sources of the package as module:name, found by their decorators or calls of them."""
    found: set[str] = set()
    for file in package.glob("**/*.py"):
        module = ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        found.update(f"{module}:{name}" for name in _kernels(ast.parse(file.read_text("utf-8"))))
    return found


def _kernels(module: ast.Module) -> Iterator[str]:
    """Yield the qualified names of the kernels of a module."""
    named = {
        part.targets[0].id
        for part in module.body
        if isinstance(part, ast.Assign) and _marks(part.value, _MARKS) and isinstance(part.targets[0], ast.Name)
    }  # such as _compiled = lossy_kernel(fastmath=True)
    yield from _inside(module, {*_MARKS, *named}, "")


def _inside(node: ast.AST, marks: set[str], outside: str) -> Iterator[str]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef):
            if any(_marks(decorator, marks) for decorator in inner.decorator_list):
                yield outside + inner.name
            yield from _inside(inner, marks, f"{outside}{inner.name}.<locals>.")
        elif isinstance(inner, ast.Call) and _marks(inner, marks):
            yield from (outside + argument.id for argument in inner.args if isinstance(argument, ast.Name))
        else:
            yield from _inside(inner, marks, f"{outside}{inner.name}." if isinstance(inner, ast.ClassDef) else outside)


def _marks(node: ast.AST, marks: Collection[str]) -> bool:
    """Return whether an expression is a decorator of kernels, or a call of one."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in marks
