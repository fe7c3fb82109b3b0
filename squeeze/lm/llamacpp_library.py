"""The library llama.cpp itself: loading it silently, and what it says of itself and of what goes wrong."""

import ctypes
import functools
from typing import Any

from squeeze.errors import ModelError
from squeeze.system.extras import how_to_install

ON_GPU = 999  # layers of a model: all that there are
_said: list[str] = []  # the latest errors of llama.cpp, which would go to standard error


@functools.cache
def library() -> Any:
    """The module llama_cpp, silenced."""
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(
            f"the backend llamacpp needs llama-cpp-python ({error}): {how_to_install('llamacpp')}"
        ) from error

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator,unused-ignore]
    def listen(level: int, text: bytes, data: object) -> None:
        if level == 4:
            _said[:] = [text.decode("utf-8", "replace").strip()]

    llama_cpp.llama_log_set(listen, ctypes.c_void_p(0))
    _kept.append(listen)
    llama_cpp.llama_backend_init()
    return llama_cpp


_kept: list[object] = []  # what C code points to


def reason() -> str:
    return f": {_said[-1]}" if _said else ""


def needed(pointer: Any, what: object) -> Any:
    if not pointer:
        raise ModelError(f"{what}: llama.cpp cannot load the model{reason()}")
    return pointer


def model_parameters(llama: Any) -> Any:
    """How a model is opened: on a GPU where the build has one, and never with weights in the order of AMX's tiles. What
    llama.cpp does with these ends in an illegal instruction where GCC built it (llama.cpp's pull request 26954)."""
    parameters = llama.llama_model_default_params()
    parameters.n_gpu_layers = ON_GPU if llama.llama_supports_gpu_offload() else 0
    parameters.use_extra_bufts = "AMX_INT8" not in system(llama)
    return parameters


def system(library: Any) -> str:
    """Features of the build, those that are off left out: 'CPU: AVX AVX2 F16C'."""
    text = library.llama_print_system_info().decode("utf-8", "replace")
    features = (
        name.strip().removesuffix("= 1").strip() for name in text.split("|") if not name.strip().endswith("= 0")
    )
    return " ".join(name.replace(" : ", ": ") for name in features if name)
