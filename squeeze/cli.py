"""The `squeeze` command: a group that finds its commands in commands/ when they are asked for.

Only click and the standard library are imported here, so that `squeeze --help` answers at once.
"""

import os
import re
import signal
import stat
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import click

from squeeze.errors import OptionError
from squeeze.version import __version__

COMMANDS = {  # name: where it is, and the first line of its help
    "advise": ("advise:advise", "Predict layer by layer whether 2:4 is faster than dense weights on a device."),
    "apply": ("apply:apply", "Do what a recipe says to a model's folder."),
    "bench": ("bench:bench", "Compare sizes and speeds on each FILE, every round trip proved."),
    "compare": ("compare:compare", "Show what two models write after the same prompts, and how far apart they are."),
    "completion": ("completion:completion", "Print what lets a shell complete commands and options."),
    "compress": ("compress:compress", "Compress each FILE to FILE.sqz."),
    "decompress": ("decompress:decompress", "Restore each FILE.sqz to FILE."),
    "delta": ("delta:delta", "Write a fine-tune as its difference from a base, and report what it cost."),
    "densify": ("densify:densify", "Write every weight of a folder dense, so that any other tool reads it."),
    "eval": ("eval:evaluate", "Measure how well a model predicts a text, and what it scores on tasks."),
    "explain": ("explain:explain", "Show where the bits of FILE go: what each byte or token costs, and why."),
    "factorize": ("factorize:factorize", "Factorise the weights of a model's folder."),
    "generate": ("generate:generate", "Continue PROMPT, as it comes; with --kv, in less memory."),
    "history": ("history:history", "Show what a packed checkpoint is a difference from, and what that is."),
    "imatrix": ("imatrix:imatrix", "Write llama.cpp's importance matrix of a model's folder."),
    "import": ("import_:import_", "Write a GGUF file as a Hugging Face folder."),
    "info": ("info:info", "Show versions, CPU, GPUs, folders and models."),
    "inspect": ("inspect:inspect", "Show the entropy of each field, the bound, the coded size and the gap between."),
    "kv-eval": ("kv_eval:kv_eval", "Measure what KV cache policies cost and save."),
    "list": ("list:list_command", "Show sizes, level and checksum of each FILE.sqz, and with -v its blocks."),
    "pack": ("pack:pack", "Pack a checkpoint without loss: a file of safetensors or of torch, or a model's folder."),
    "prune": ("prune:prune", "Prune the weights of a model's folder, and report what it cost."),
    "quantize": ("quantize:quantize", "Quantise the weights of a model's folder, and report what it cost."),
    "report": ("report:report", "Compare runs: a page with sizes against quality, and the differences layer by layer."),
    "test": ("test:test", "Decode each FILE.sqz, compare its checksums, and write nothing."),
    "train": ("train:train", "Learn from sample FILEs what many small files like them begin with."),
    "unpack": ("unpack:unpack", "Restore a packed checkpoint, byte for byte."),
    "verify": ("verify:verify", "Decode a packed checkpoint, compare every checksum, and write nothing."),
}
# Threads of OpenMP (torch) that wait for each other give way after some microseconds: spinning for longer makes nothing
# faster on a quiet machine, and everything two to three times as slow beside other processes.
_WAITING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
_SHORT = {"c": "compress", "d": "decompress"}
_LEVEL = re.compile("-[1-9]")
_BAD_LEVEL = re.compile("-[cfkqrvh]*(0|[0-9]{2,})[cfkqrvh]*")  # which would be read as several levels
_WITH_LEVELS = ("bench", "c", "compress", "explain", "train")
_DECOMPRESS = ("-d", "--decompress")  # as other compressors have it


class Commands(MutableMapping[str, click.Command]):
    """The commands of COMMANDS, each imported when it is taken."""

    def __init__(self) -> None:
        self._known: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._known:
            module, _, attribute = COMMANDS[name][0].partition(":")
            self._known[name] = getattr(import_module(f"squeeze.commands.{module}"), attribute)
        return self._known[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._known[name] = command

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*COMMANDS, *self._known)))

    def __len__(self) -> int:
        return len(list(iter(self)))


class Misused(click.ClickException):
    """An option's value is out of bounds."""

    exit_code = 2


class Group(click.Group):
    """Turns exceptions into one line, knows the one-letter names of two commands, and lists all without their code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = _bad_level(args)
        return super().parse_args(ctx, ["compress"] if ctx.obj and args[0].startswith("-") else _as_filter(args))

    def invoke(self, ctx: click.Context) -> Any:
        from squeeze.commands import standard  # what `--help` does not need
        from squeeze.commands.echo import mention
        from squeeze.commands.job import MISHAPS, explain
        from squeeze.system import extras, files, notices

        standard.guard()
        notices.listen(mention)  # until a command has -q
        if "OMP_WAIT_POLICY" not in os.environ:
            for name, value in _WAITING.items():
                os.environ.setdefault(name, value)
        try:
            if ctx.obj:
                raise OptionError(f"the level must be from 1 to 9, got {ctx.obj}")
            with files.interruptible(), extras.explained():
                return super().invoke(ctx)
        except BrokenPipeError:
            _end_by(signal.SIGPIPE)
            raise  # click ends in silence
        except OptionError as error:
            raise Misused(explain(error)) from error
        except (*MISHAPS, KeyboardInterrupt) as error:
            failed = click.ClickException(explain(error))
            if isinstance(error, KeyboardInterrupt) and files.interrupted.is_set():
                failed.show()
                _end_by(files.interrupted.by)
            raise failed from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _SHORT.get(cmd_name, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


def _end_by(number: int) -> None:
    """End by a signal, as other filters do: a shell's loop ends with a command that Ctrl-C has ended, and tar takes any
    status for an error, but SIGPIPE for none."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _as_filter(args: list[str]) -> list[str]:
    """The arguments; where they are what tar gives a program for its archives, with the name of the command.

    That is nothing, or a level, for compressing from a pipe or file, and -d after it for decompressing.
    """
    others = [one for one in args if not _LEVEL.fullmatch(one)]
    if others and all(one in _DECOMPRESS for one in others):
        return ["decompress"]
    if not others and (args or _is_fed()):
        return ["compress", *args]
    return args


def _bad_level(args: list[str]) -> str | None:
    """The first level of two digits, or 0, among the arguments of a command that takes levels, or of a filter."""
    if not args or not (args[0] in _WITH_LEVELS or args[0].startswith("-")):
        return None
    flags = args[: args.index("--")] if "--" in args else args
    return next((match[1] for arg in flags if (match := _BAD_LEVEL.fullmatch(arg))), None)


def _is_fed() -> bool:
    """Whether standard input is a pipe or a file, and standard output no terminal."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
        return (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)) and not sys.stdout.isatty()
    except (AttributeError, OSError, ValueError):  # closed, or not the system's
        return False


def _say_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from squeeze.codecs.stream.container import FORMAT, NUMERICS

    click.echo(f"squeeze {__version__}, .sqz format {FORMAT}, numerics {NUMERICS}")
    ctx.exit()


@click.group(cls=Group, commands=Commands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_version,
    help="Show the version, and the format and numerics it reads.",
)
def main() -> None:
    """Lossless compression with predictive models.

    `squeeze c` and `squeeze d` are short for compress and decompress. Without
    a file, or for the file -, standard input goes to standard output. tar
    takes it: tar --use-compress-program=squeeze. Files and checkpoints may be
    at URLs that fsspec reads, such as s3://bucket/name.
    """
