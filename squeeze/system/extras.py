"""Packages that only a part of squeeze needs, and the extras of its distribution that bring them."""

from collections.abc import Iterator
from contextlib import contextmanager

from squeeze.errors import PackageError

__all__ = ["DISTRIBUTION", "EXTRAS", "Missing", "explained", "how_to_install"]

DISTRIBUTION = "squeeze-neural"  # on PyPI, where another project is called squeeze
EXTRAS = {
    "cloud": ("fsspec", "gcsfs", "huggingface_hub", "obstore", "s3fs"),
    "cluster": ("pandas", "pyarrow", "ray"),
    "llamacpp": ("llama_cpp",),
    "report": ("vl_convert",),
    "models": ("accelerate", "compressed_tensors", "torch", "transformers", "yaml"),
    "tasks": ("lm_eval",),
}


def how_to_install(extra: str) -> str:
    """The command that installs squeeze with an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


class Missing:
    """Stands for a function or class whose packages are not installed.

    Using it raises PackageError. Naming it does not, so that `from squeeze import *`, `hasattr` and tools that list a
    module work.
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
    """Raises PackageError, which names the extra, where a package of one is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        for extra, packages in EXTRAS.items():
            if error.name in packages:
                message = f"this needs {error.name}, which is not installed: {how_to_install(extra)}"
                raise PackageError(message) from error
        raise
