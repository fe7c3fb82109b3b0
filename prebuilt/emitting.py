"""The object code of all kernels and signatures for a target, and the table of them."""

import multiprocessing
import pickle
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from numba import types

from prebuilt.objects import entry_point, is_there, undefined
from prebuilt.signatures import of_this_target, signature_hash
from prebuilt.targets import ROOT, Target
from squeeze.version import __version__

_NARROW, _WIDE = (types.uint8, types.uint16, types.uint32), (types.uint16, types.uint32, types.uint64)
# Kernels with arguments that are words of any width, of which the values of the workload need some alone: places that
# have one type, and the types.
_WORDS = {
    "squeeze.packing.tensors.fixed_blocks:decode_blocks": [((0, 13), (types.int8,))],
    "squeeze.packing.tensors.fixed_blocks:encode_blocks": [((0, 11), (types.int8,))],
    "squeeze.packing.tensors.planes:choose_groups": [((0,), _NARROW)],
    "squeeze.packing.tensors.planes:cut_plane": [((0,), _WIDE), ((3,), _NARROW)],
    "squeeze.packing.tensors.planes:pack_raw": [((0,), _NARROW)],
    "squeeze.packing.tensors.planes:put_plane": [((0,), _WIDE), ((4,), _NARROW)],
}
_SYSTEM = {"log10", "log2", "log2f", "memcpy", "memmove", "memset", "sched_yield", "usleep"}  # of the C library


def emit(target: Target, folder: Path, signatures: Path, processes: int) -> None:
    """Write an object for each entry point, table.txt, and the paths of the objects to linked.txt.

    Args:
        target: the processor.
        folder: where to write, and where the objects of an earlier call are.
        signatures: what recording.py has written.
        processes: how many compile side by side.
    """
    wanted: dict[str, list[Any]] = {}
    for name, signature in _all_widths(pickle.loads(signatures.read_bytes())):
        if name.startswith(target.only):
            wanted.setdefault(name, []).append(of_this_target(name, signature))
    there = partial(is_there, target.name, folder)
    if missing := {name: rows for name, rows in wanted.items() if not all(there(name, row) for row in rows)}:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), target.prepare) as pool:
            list(pool.map(partial(_compile, target.name, folder), missing.items()))
    found = {name: [entry_point(target.name, folder, name, row) for row in rows] for name, rows in wanted.items()}
    lines = [" ".join([name, *row]) for name, rows in found.items() for row in rows]
    (folder / "table.txt").write_text("\n".join([f"{__version__} {target.wanted}", *lines]) + "\n")
    objects = [folder / f"{entry}.o" for rows in found.values() for _, entry, _ in rows]
    _check(objects)
    (folder / "linked.txt").write_text("".join(f"{path}\n" for path in objects))
    for old in {*folder.glob("squeeze_*")}.difference(objects, (path.with_suffix(".kind") for path in objects)):
        old.unlink()


def _all_widths(recorded: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield kernels and signatures, with those of other widths of words than the values of the workload needed."""
    found = {}
    for name, signature in recorded:
        others = [signature]
        for places, kinds in _WORDS.get(name, ()):
            others += [_replaced(other, places, kind) for other in others for kind in kinds]
        found |= {(name, signature_hash(other)): other for other in others}
    for (name, _), signature in found.items():
        yield name, signature


def _replaced(signature: tuple[Any, ...], places: tuple[int, ...], dtype: Any) -> tuple[Any, ...]:
    return tuple(kind.copy(dtype=dtype) if i in places else kind for i, kind in enumerate(signature))


def _check(objects: list[Path]) -> None:
    """Exit with an error if an object takes a name from elsewhere that neither call.c, Python nor the system has."""
    ours = re.findall(r"(?:NRT|numba)_\w+(?=\()", (ROOT / "prebuilt" / "call.c").read_text())
    lacking = set().union(*map(undefined, objects)).difference(ours, _SYSTEM)
    if names := sorted(name for name in lacking if not name.startswith("Py")):
        raise SystemExit(f"kernels call {', '.join(names)}: define them in call.c, or add them to _SYSTEM")


def _compile(target: str, folder: Path, kernel: tuple[str, list[Any]]) -> None:
    """Write the objects of a kernel that are not there."""
    name, signatures = kernel
    for signature in signatures:
        entry_point(target, folder, name, signature)
