"""The processors that libraries are made for."""

import hashlib
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
CALL = "call.so"  # call.c as a library of its own, for recording
_V2 = "cx16 popcnt sahf sse3 sse4.1 sse4.2 ssse3"
_V3 = f"{_V2} avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
_V4 = (
    f"{_V3} avx512bitalg avx512bw avx512cd avx512dq avx512f avx512vbmi avx512vbmi2 avx512vl avx512vnni avx512vpopcntdq"
    " evex512 gfni"
)


@dataclass(frozen=True)
class Target:
    """A processor: the name of its library, LLVM's names of processor and features, and of the system."""

    name: str
    processor: str
    wanted: str
    triple: str
    zig: str  # the system, for `zig cc`
    base: str = ""  # the library of which this one replaces some kernels
    only: str = ""  # how the names of these kernels begin

    @property
    def features(self) -> list[str]:
        return self.wanted.split()

    def environment(self) -> dict[str, str]:
        """Return numba's environment variables."""
        flags = ",".join(f"+{feature}" for feature in self.features)
        return {"NUMBA_CPU_NAME": self.processor, "NUMBA_CPU_FEATURES": flags}

    def prepare(self) -> None:
        """Let LLVM compile for this target in this process, before numba is imported."""
        import llvmlite.binding as llvm  # which linking does not need

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        if self.triple != llvm.get_process_triple():
            llvm.get_process_triple = lambda: self.triple

    def compiler(self) -> list[str]:
        """Return the command that compiles C and links for the target: zig's, or this system's compiler."""
        flags = ["-O2", "-shared", "-fPIC", "-s", "-fvisibility=default"]
        if find_spec("ziglang"):
            return [sys.executable, "-m", "ziglang", "cc", "-target", self.zig, *flags]
        if platform.machine() in self.name and (found := shutil.which("cc")):
            return [found, *flags]
        raise SystemExit(f"no compiler for {self.name}: pip install ziglang")


_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
_ZIG = "x86_64-linux-gnu.2.28"
TARGETS = {
    target.name: target
    for target in (
        Target("linux-x86_64-v2", "x86-64-v2", _V2, _X86, _ZIG),
        Target("linux-x86_64-v3", "x86-64-v3", _V3, _X86, _ZIG),
        Target("linux-x86_64-v4", "x86-64-v4", _V4, _X86, _ZIG),
        Target("linux-x86_64-v3-amd", "znver3", _V3, _X86, _ZIG, "linux-x86_64-v3", "squeeze.packing."),
        Target("linux-x86_64-v4-amd", "znver4", _V4, _X86, _ZIG, "linux-x86_64-v4", "squeeze.packing."),
        Target("linux-aarch64-v8", "generic", "neon", _ARM, "aarch64-linux-gnu.2.28"),
    )
}


RECORDED = TARGETS["linux-x86_64-v3"]  # whose signatures all targets have


RECORDING = "recording", "workload", "checkpoints"  # modules of this folder that signatures depend on


def digest(root: Path, modules: Sequence[str] = ("*",)) -> str:
    """Return a digest of the package's sources and of some modules of this folder; of all, for machine code."""
    found = hashlib.sha256()
    here = (file for name in modules for file in root.glob(f"prebuilt/{name}.[cp]*"))
    for file in sorted({*root.glob("squeeze/**/*.py"), *here}):
        found.update(f"{file.relative_to(root)}\0{file.read_text('utf-8')}\0".encode())
    return found.hexdigest()
