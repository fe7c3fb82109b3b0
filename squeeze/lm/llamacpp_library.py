"""Loading of llama.cpp without log output, its parameters, and its last error."""

import ctypes
import functools
from typing import Any

from squeeze.errors import ModelError
from squeeze.system.extras import how_to_install

ON_GPU = 999  # layers on the GPU: all
_latest_error: list[str] = []  # the last error of llama.cpp, which would go to standard error


@functools.cache
def library() -> Any:
    """Return the module llama_cpp with its log silenced.

    Raises:
        ModelError: if it is not installed.
    """
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(
            f"the backend llamacpp needs llama-cpp-python ({error}): {how_to_install('llamacpp')}"
        ) from error

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator,unused-ignore]
    def on_log(level: int, text: bytes, data: object) -> None:
        if level == 4:
            _latest_error[:] = [text.decode("utf-8", "replace").strip()]

    llama_cpp.llama_log_set(on_log, ctypes.c_void_p(0))
    _kept.append(on_log)
    llama_cpp.llama_backend_init()
    return llama_cpp


_kept: list[object] = []  # objects that C code points to


def reason() -> str:
    return f": {_latest_error[-1]}" if _latest_error else ""


def not_null(pointer: Any, what: object) -> Any:
    if not pointer:
        raise ModelError(f"{what}: llama.cpp cannot load the model{reason()}")
    return pointer


def model_parameters(llama: Any) -> Any:
    """Return the parameters with which models are opened: on a GPU if the build has one.

    Weights are not repacked for AMX: code that GCC builds for it ends in an illegal instruction (llama.cpp pull request
    26954).
    """
    parameters = llama.llama_model_default_params()
    parameters.n_gpu_layers = ON_GPU if llama.llama_supports_gpu_offload() else 0
    parameters.use_extra_bufts = "AMX_INT8" not in system(llama)
    return parameters


def system(library: Any) -> str:
    """Return the features of the build that are on, such as 'CPU: AVX AVX2 F16C'."""
    text = library.llama_print_system_info().decode("utf-8", "replace")
    features = (
        name.strip().removesuffix("= 1").strip() for name in text.split("|") if not name.strip().endswith("= 0")
    )
    return " ".join(name.replace(" : ", ": ") for name in features if name)
