"""Compress a file that comes with Python, test it, restore it, compare; then print sizes beside xz and zstd."""

import lzma
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import import_module
from pathlib import Path


def squeeze(*arguments: str | Path) -> None:
    print("$ squeeze", *(a.name if isinstance(a, Path) else a for a in arguments))
    subprocess.run([sys.executable, "-m", "squeeze", *map(str, arguments)], check=True)


def zstd_size(path: Path) -> str:
    if program := shutil.which("zstd"):
        return str(len(subprocess.run([program, "-19", "-q", "-c", path], check=True, capture_output=True).stdout))
    if sys.version_info >= (3, 14):
        return str(len(import_module("compression.zstd").compress(path.read_bytes(), level=19)))
    return "not installed"


def main() -> None:
    original = Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")
    data = original.read_bytes()
    sizes = {"original": str(len(data))}
    with tempfile.TemporaryDirectory() as name:
        raw, coded, restored = (Path(name, part) for part in ("topics.py", "topics.py.sqz", "restored.py"))
        shutil.copyfile(original, raw)
        for level in ("-1", "-2", "-3"):
            squeeze("compress", level, "-f", raw)
            squeeze("test", coded)
            squeeze("decompress", "-f", coded, "-o", restored)
            if restored.read_bytes() != data:
                sys.exit("Error: the restored file differs from the original")
            sizes[f"squeeze {level}"] = str(coded.stat().st_size)
    sizes["xz -9e"] = str(len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)))
    sizes["zstd -19"] = zstd_size(original)
    print("\nEvery restored file equals the original.\n")
    for tool, size in sizes.items():
        percent = f"{100 * int(size) / len(data):7.2f} %" if size.isdigit() else ""
        print(f"{tool:<12} {size:>14} {percent}")


if __name__ == "__main__":
    main()
