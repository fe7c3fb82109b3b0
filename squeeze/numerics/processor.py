"""Which instructions the processor has that numba compiles for: kernels choose by it, and give the same bytes."""

from typing import Any

import llvmlite.binding as llvm
from numba.core import config

_config: Any = config


def has(feature: str) -> bool:
    """Whether it has a feature by LLVM's name, such as "avx512vnni". Where NUMBA_CPU_NAME or NUMBA_CPU_FEATURES ask for
    another processor than this machine's, it has what the latter says; NUMBA_ENABLE_AVX=0 leaves AVX out. "neon" is
    what every 64-bit Arm has, which LLVM does not always say."""
    if _config.CPU_FEATURES is not None:  # numba makes it "" for a name alone
        return f"+{feature}" in _config.CPU_FEATURES.split(",")
    if feature.startswith("avx") and not _config.ENABLE_AVX:
        return False
    if feature == "neon":
        return bool(llvm.get_process_triple().startswith(("aarch64-", "arm64-")))
    return bool(llvm.get_host_cpu_features().get(feature, False))


def gathers_slowly() -> bool:
    """Whether a load for each number of a vector is faster than the instruction that gathers them: so it is by AMD."""
    name: str = _config.CPU_NAME or llvm.get_host_cpu_name()
    return name.startswith("znver")
