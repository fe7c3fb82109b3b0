"""The `squeeze` command, a group that imports its commands when they are used.

Only click and the standard library are imported here, so that `squeeze --help` answers at once.
"""

import gc
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

SECTIONS = {  # commands by what they are for: where each one is, and the first line of its help
    "Files": {
        "compress": ("compress:compress", "Compress files, or a folder into one archive."),
        "decompress": ("decompress:decompress", "Restore files and folders, or a part of a file."),
        "list": ("list:list_command", "Show sizes, ratio, level and members of compressed files."),
        "test": ("decompress:test", "Check that compressed files decode to their checksums."),
        "explain": ("explain:explain", "Show which bytes or tokens of a file cost how many bits."),
        "train": ("train:train", "Train a dictionary for small files, or a language model adapter."),
        "bench": ("bench:bench", "Compare sizes and speeds with xz, zstd and others on your files."),
    },
    "Checkpoints": {
        "pack": ("pack:pack", "Compress a checkpoint losslessly."),
        "unpack": ("unpack:unpack", "Restore a packed checkpoint, byte for byte."),
        "verify": ("unpack:verify", "Check that a packed checkpoint decodes to its checksums."),
        "store": ("store:store", "Keep models in a store, each tensor once."),
        "inspect": ("inspect:inspect", "Show entropy and coded size of a checkpoint, by tensor."),
        "history": ("inspect:history", "Show the chain of bases that a packed checkpoint depends on."),
        "import": ("gguf:import_", "Convert a GGUF file to a Hugging Face folder."),
    },
    "Smaller models": {
        "quantize": ("weights:quantize", "Quantise a model's weights to 2 to 8 bits, and report the loss."),
        "prune": ("weights:prune", "Set weights of a model to zero, and report the loss."),
        "factorize": (
            "weights:factorize",
            "Factorise matrices into smaller ones, and report the loss.",
        ),
        "experts": ("experts:experts", "Reduce the experts of a mixture of experts, and report the loss."),
        "recover": ("recover:recover", "Train a quantised or pruned model towards its original."),
        "delta": ("weights:delta", "Store a fine-tune as a small lossy difference from its base."),
        "densify": ("weights:densify", "Write a compressed model's weights dense, for any other tool."),
        "apply": ("apply:apply", "Run a recipe of steps, such as prune, quantize and pack."),
        "imatrix": ("gguf:imatrix", "Compute an importance matrix for llama-quantize."),
        "advise": ("weights:advise", "Predict which layers run faster with 2:4 sparsity on a device."),
    },
    "Look and measure": {
        "eval": ("eval:evaluate", "Measure perplexity, KL divergence, output errors and task scores."),
        "compare": ("compare:compare", "Compare what two models generate after the same prompts."),
        "generate": ("generate:generate", "Generate text with a model, also with a compressed KV cache."),
        "kv-eval": ("kv_eval:kv_eval", "Measure quality, memory and time of KV cache policies."),
        "report": ("report:report", "Compare runs on one page: sizes, quality and layers."),
        "info": ("info:info", "Show versions, hardware, folders and models."),
        "completion": ("info:completion", "Print the completion script for bash, fish or zsh."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
# OpenMP threads (of torch) that wait for each other yield after some microseconds. Longer spinning is no faster on a
# quiet machine, and two to three times slower if other processes run.
_WAITING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
_SHORT = {"c": "compress", "d": "decompress"}
_LEVEL = re.compile("-[1-9]")
_BAD_LEVEL = re.compile("-[cfkqrvh]*(0|[0-9]{2,})[cfkqrvh]*")  # click would read it as several levels
_WITH_LEVELS = ("bench", "c", "compress", "explain", "train")
_DECOMPRESS = ("-d", "--decompress")  # options of other compressors


class Commands(MutableMapping[str, click.Command]):
    """A mapping of COMMANDS that imports each command when it is looked up."""

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
    """An error of exit code 2: an option's value is out of bounds."""

    exit_code = 2


_NAMED = re.compile(r"[a-z_]+(?= (?:must|'))")  # in errors of options


class Group(click.Group):
    """A group that turns exceptions into one line, and lists commands by section without importing them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        ctx.obj = _bad_level(args)
        return super().parse_args(ctx, ["compress"] if ctx.obj and args[0].startswith("-") else _as_filter(args))

    def invoke(self, ctx: click.Context) -> Any:
        from squeeze.commands.echo import EXPECTED_ERRORS, explain, guard, mention  # `--help` does not need them
        from squeeze.system import extras, files, notices

        guard()
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
            raise Misused(self._with_dashes(ctx, explain(error))) from error
        except (*EXPECTED_ERRORS, KeyboardInterrupt) as error:
            failed = click.ClickException(explain(error))
            if isinstance(error, KeyboardInterrupt) and files.interrupted.is_set():
                failed.show()
                _end_by(files.interrupted.by)
            raise failed from error

    def _with_dashes(self, ctx: click.Context, message: str) -> str:
        """Write the name in `NAME must be ...` or `NAME 'value' ...` as an option, if the called command has it."""
        command, name = self.get_command(ctx, ctx.invoked_subcommand or ""), _NAMED.match(message)
        long = f"--{name[0].replace('_', '-')}" if name else ""
        known = command and name and any(long in parameter.opts for parameter in command.get_params(ctx))
        return f"{long}{message[len(long) - 2 :]}" if known else message

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _SHORT.get(cmd_name, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])


def _end_by(number: int) -> None:
    """End this process by a signal, as other filters do.

    A shell's loop ends with a command that Ctrl-C ended. tar takes every exit status for an error, but not SIGPIPE.
    """
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _as_filter(args: list[str]) -> list[str]:
    """Add the name of the command if the arguments are those that tar gives its compression program.

    tar gives nothing or a level to compress from a pipe or file, and -d as well to decompress.
    """
    others = [word for word in args if not _LEVEL.fullmatch(word)]
    if others and all(word in _DECOMPRESS for word in others):
        return ["decompress"]
    if not others and (args or _is_fed()):
        return ["compress", *args]
    return args


def _bad_level(args: list[str]) -> str | None:
    """Return the first level of two digits, or 0, in the arguments of a command that takes levels, or of a filter."""
    if not args or not (args[0] in _WITH_LEVELS or args[0].startswith("-")):
        return None
    flags = args[: args.index("--")] if "--" in args else args
    return next((match[1] for arg in flags if (match := _BAD_LEVEL.fullmatch(arg))), None)


def _is_fed() -> bool:
    """Return whether standard input is a pipe or a file, and standard output is not a terminal."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
        return (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)) and not sys.stdout.isatty()
    except (AttributeError, OSError, ValueError):  # a closed stream, or one of a test
        return False


def _say_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from squeeze.codecs.stream.container import FORMAT, NUMERICS

    click.echo(f"squeeze {__version__}, .sqz format {FORMAT}, numerics {NUMERICS}")
    ctx.exit()


@click.group(cls=Group, commands=Commands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_version,
    help="Print the version, and the file format that it reads",
)
def main() -> None:
    """Lossless compression with predictive models, for files and model checkpoints.

    \b
    Examples: squeeze compress -8 report.txt
              squeeze decompress report.txt.sqz
              squeeze compress photos -o photos.tar.sqz
              squeeze pack my-model my-model-packed
              squeeze quantize my-model my-model-4bit --bits 4

    `squeeze help COMMAND` explains a command. `squeeze c` and `squeeze d` are short for compress and decompress.

    Standard input goes to standard output if no file is named, or the file -. tar can use the command: tar
    --use-compress-program=squeeze. A file or checkpoint can also be a URL that fsspec reads, such as s3://bucket/name.
    """


_AT_START = 100_000  # objects


def run() -> None:
    """Run the command as a process of its own, whose start is not interrupted by the collection of garbage.

    Nearly all objects of a start stay: looking through them, then and at the end, takes a sixth of the time that it
    takes to compress a small file.
    """
    usual = gc.get_threshold()

    def as_usual(phase: str, info: dict[str, int]) -> None:
        gc.set_threshold(*usual)
        gc.callbacks.remove(as_usual)

    gc.callbacks.append(as_usual)
    gc.set_threshold(_AT_START)
    try:
        main()
    finally:
        if "torch" not in sys.modules:  # whose libraries report what is not collected as leaks
            gc.freeze()
