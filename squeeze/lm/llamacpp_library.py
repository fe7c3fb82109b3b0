"""The library llama.cpp itself: loading it silently, and what it says of itself and of what goes wrong."""

import ctypes
import functools
from typing import Any

from squeeze.errors import ModelError
from squeeze.system.extras import how_to_install

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


def system(library: Any) -> str:
    """Features of the build, those that are off left out: 'CPU: AVX AVX2 F16C'."""
    text = library.llama_print_system_info().decode("utf-8", "replace")
    features = (
        name.strip().removesuffix("= 1").strip() for name in text.split("|") if not name.strip().endswith("= 0")
    )
    return " ".join(name.replace(" : ", ": ") for name in features if name)
