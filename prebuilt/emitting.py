"""Object code of all kernels and signatures of a target, and the table of them."""

import pickle
from importlib import import_module
from pathlib import Path

import llvmlite.binding as llvm

from prebuilt.targets import Target


def emit(target: Target, folder: Path, signatures: Path) -> None:
    """Write an object for each entry point, and table.txt."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    if target.triple != llvm.get_process_triple():
        llvm.get_process_triple = lambda: target.triple
    from prebuilt.entries import compile_entry
    from prebuilt.signatures import result, signature_hash
    from squeeze.numerics.compiling import KERNELS

    for path in folder.glob("*.o"):
        path.unlink()
    table: dict[str, dict[int, tuple[str, str, str]]] = {}
    for name, signature in pickle.loads(signatures.read_bytes()):
        if not name.startswith(target.only):
            continue
        import_module(name.partition(":")[0])
        rows, key = table.setdefault(name, {}), signature_hash(signature)
        if key in rows:  # arrays that may be written, and the same ones that may not
            continue
        entry = f"squeeze_{len(table)}_{len(rows)}"
        code, returned = compile_entry(KERNELS[name], signature, entry)
        (folder / f"{entry}.o").write_bytes(code)
        rows[key] = (f"{key:016x}", entry, result(returned))
    lines = [" ".join([name, *row]) for name, rows in table.items() for row in rows.values()]
    (folder / "table.txt").write_text("\n".join([target.wanted, *lines]) + "\n")
