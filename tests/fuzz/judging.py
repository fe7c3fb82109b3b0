"""Judge the outcome of reading a mutated file: refused in one line, read for what it is, or a fault of ours."""

import errno
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from squeeze.errors import SqueezeError
from squeeze.system.limits import Limits

REFUSED, SAME, TRUE = "refused", "same", "true"
WRONG, TRACEBACK, HANG, MEMORY, CRASH = "wrong", "traceback", "hang", "memory", "crash"
KINDS = (REFUSED, SAME, TRUE, WRONG, TRACEBACK, HANG, MEMORY, CRASH)
FAULTS = (WRONG, TRACEBACK, HANG, MEMORY, CRASH)
LIMITS = Limits(memory=256 << 20, output=64 << 20)
_LONGEST = 2_000  # characters of a message, with a path and what it quotes


class Wrong(Exception):
    """The data that was read is not what the file says, and nothing was said."""


@dataclass(frozen=True)
class Verdict:
    """kind: one of KINDS. where: the place in the code, by which faults are grouped; detail: what was said."""

    kind: str
    where: str = ""
    detail: str = ""


class Format(Protocol):
    """A format that squeeze reads."""

    name: str
    seconds: float  # in which a case of the format is done, about

    def mutate(self, random: Random) -> Any:
        """A case: what `read` takes."""
        ...

    def read(self, case: Any, folder: Path) -> str:
        """SAME or TRUE; raises what reading raises, and Wrong. It may write in `folder`, which is empty."""
        ...


def case(form: Format, seed: int, number: int) -> Any:
    """The mutated file of this number."""
    return form.mutate(generator(form.name, seed, number))


def generator(name: str, seed: int, number: int) -> Random:
    return Random(zlib.crc32(name.encode()) << 64 | seed << 32 | number)


def judge(form: Format, seed: int, number: int, folder: Path) -> Verdict:
    """Return the outcome of a case."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = Verdict(form.read(case(form, seed, number), folder / "inside"))
    except SqueezeError as error:
        found = _said(error)
    except Wrong as error:
        found = Verdict(WRONG, str(error))
    except MemoryError as error:
        found = Verdict(MEMORY, _place(error), _line(error))
    except OSError as error:
        found = Verdict(MEMORY if error.errno == errno.ENOMEM else TRACEBACK, _place(error), _line(error))
    except Exception as error:
        lacks = isinstance(error, RuntimeError) and "allocate memory" in str(error)
        found = Verdict(MEMORY if lacks else TRACEBACK, _place(error), _line(error))
    strays = sorted(path.name for path in folder.iterdir() if path.name != "inside")
    return Verdict(WRONG, "wrote outside its folder", ", ".join(strays)) if strays else found


def _said(error: SqueezeError) -> Verdict:
    text = str(error)
    if text.isprintable() and 0 < len(text) <= _LONGEST:
        return Verdict(REFUSED, type(error).__name__, text)
    return Verdict(TRACEBACK, f"{_place(error)}: the message is not one printable line", ascii(text)[:300])


def _line(error: BaseException) -> str:
    return ascii(f"{type(error).__name__}: {error}")[1:300]


def _place(error: BaseException) -> str:
    """The innermost line of squeeze that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/squeeze/" in frame.filename] or frames
    name = ours[-1].filename
    name = name[name.rfind("/squeeze/") + 1 :] if "/squeeze/" in name else Path(name).name
    return f"{name}:{ours[-1].lineno} {type(error).__name__}"


def one_of(random: Random, *choices: tuple[float, Callable[[Random], Any]]) -> Any:
    """Return the result of one of the functions, chosen by their weights."""
    weights = [weight for weight, _ in choices]
    return random.choices([function for _, function in choices], weights)[0](random)


class Sink:
    """Takes what is written, to a limit."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: Any) -> int:
        self.data += data
        assert LIMITS.output is not None
        if len(self.data) > LIMITS.output + (1 << 20):
            raise MemoryError("more was written than the limit allows")
        return len(data)

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(piece)
