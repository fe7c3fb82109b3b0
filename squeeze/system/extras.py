"""Optional packages, and the extras of the distribution that install them."""

from collections.abc import Iterator
from contextlib import contextmanager

from squeeze.errors import PackageError

__all__ = ["DISTRIBUTION", "EXTRAS", "Missing", "explained", "how_to_install"]

DISTRIBUTION = "squeeze-neural"  # on PyPI, where another project is called squeeze
EXTRAS = {
    "cloud": ("fsspec", "gcsfs", "huggingface_hub", "obstore", "s3fs"),
    "compile": ("numba",),
    "cluster": ("pandas", "pyarrow", "ray"),
    "llamacpp": ("llama_cpp",),
    "report": ("vl_convert",),
    "models": ("accelerate", "compressed_tensors", "scipy", "tokenizers", "torch", "transformers", "yaml"),
    "tasks": ("lm_eval",),
}


def how_to_install(extra: str) -> str:
    """Return the command that installs squeeze with an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


class Missing:
    """A placeholder for a function or class whose packages are not installed.

    Calling it raises PackageError. Importing it does not, so that `from squeeze import *` and tools that list a module
    work.
    """

    def __init__(self, name: str, message: str):
        self._name, self._message = name, message

    def __repr__(self) -> str:
        return f"<{self._name}: {self._message}>"

    def __call__(self, *args: object, **options: object) -> object:
        raise PackageError(self._message)

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        raise PackageError(self._message)


@contextmanager
def explained() -> Iterator[None]:
    """Turn a ModuleNotFoundError for an optional package into a PackageError that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        for extra, packages in EXTRAS.items():
            if error.name in packages:
                message = f"this needs {error.name}, which is not installed: {how_to_install(extra)}"
                raise PackageError(message) from error
        raise
