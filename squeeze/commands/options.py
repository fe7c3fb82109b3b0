"""Options that several commands share, each declared once."""

from dataclasses import replace
from pathlib import Path

import click

from squeeze.codecs.stream.levels import LEVELS
from squeeze.codecs.stream.resources import BUILT_IN
from squeeze.commands.sections import Decorator, Function, in_section, several
from squeeze.commands.values import PATH, PLACE, PathOrUrl, PlaceOrName, Size
from squeeze.errors import OptionError
from squeeze.system import notices
from squeeze.system.limits import Limits

MODEL, CLUSTER, KV = "Language model (levels 7 to 9)", "Ray cluster", "KV cache"  # titles of sections
_CODING, _LIMITS, _QUALITY, _TASKS = "Compression", "Limits", "Quality of the result", "Tasks (lm-eval)"


def levels(command: Function) -> Function:
    """Add -1 to -9 and --level N; the command gets the list `levels` in the order given."""
    for n in range(1, 10):
        command = click.option(
            f"-{n}", f"level{n}", flag_value=n, type=int, hidden=True, expose_value=False, callback=_note_level
        )(command)
    level = click.option(
        "--level",
        metavar="N",
        type=int,
        expose_value=False,
        callback=_note_level,
        help="Level from 1 (fast) to 9 (small), short: -1 to -9; default: 3",
    )
    return in_section(_CODING, level)(command)


def _note_level(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
    if value is None:
        return
    if value not in LEVELS:
        raise OptionError(f"the level must be from {min(LEVELS)} to {max(LEVELS)}, got {value}")
    ctx.params.setdefault("levels", []).append(int(value))


def _silence(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        notices.listen(None)
    return value


quiet = click.option("-q", "--quiet", is_flag=True, callback=_silence, help="Print errors only")
verbose = click.option("-v", "--verbose", is_flag=True, help="Print a line for each file")
as_json = click.option(
    "--json", "as_json", is_flag=True, help="JSON output: an object per result, and progress on standard error"
)
threads = click.option(
    "-T", "--threads", metavar="N", type=click.IntRange(0), default=0, help="Number of threads; default: one per core"
)
device = click.option("--device", default="cpu", metavar="NAME", help="PyTorch device, such as cuda; default: cpu")
resident = click.option(
    "--resident", metavar="SIZE", type=Size(), help="Memory for decoded weights, such as 2G (packed models only)"
)
base = click.option(
    "--base",
    metavar="PATH",
    type=PATH,
    help="Base checkpoint of a difference; default: searched for in the folder next to it",
)
chat = click.option("--chat", is_flag=True, help="Prompts as a user's messages, in the model's chat template")
resume = click.option("--resume", is_flag=True, help="Continue a stopped run, even if OUT exists already")
model = in_section(
    MODEL,
    click.option("--model", type=PATH, metavar="PATH", help="A .gguf file, a folder, or smollm2; default: smollm2"),
)
adapter = in_section(
    MODEL,
    click.option("--adapter", type=PATH, metavar="FILE", help="Adapter that `squeeze train --adapter` wrote, or none"),
)
runs_on = in_section(
    MODEL,
    click.option(
        "--device",
        default="cpu",
        metavar="NAME",
        help="Device, with the same bytes on each: cpu, cuda, cuda:N or auto; default: cpu",
    ),
)
lanes = in_section(
    MODEL,
    click.option(
        "--lanes",
        type=click.IntRange(1),
        metavar="N",
        help="Parts of a text coded side by side; default: by its size",
    ),
    click.option(
        "--window",
        type=click.IntRange(16),
        metavar="N",
        help="Tokens that a prediction looks back at; default: by level",
    ),
)
dictionary = in_section(
    _CODING,
    click.option(
        "-D",
        "--dictionary",
        type=PlaceOrName(BUILT_IN),
        metavar="FILE|NAME",
        help="File of `squeeze train`, or auto, none or text (levels 1 to 6); default: auto",
    ),
)


def _check_page(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and not ctx.resilient_parsing:
        from squeeze.recipes.reports.page import check_page

        check_page(value)
    return value


report = click.option(
    "--report",
    "page",
    type=PATH,
    metavar="PAGE.html",
    callback=_check_page,
    help="Page to write with the result, for any browser",
)


def force(what: str = "OUT") -> Decorator:
    """Return the option -f, which overwrites `what`."""
    return click.option("-f", "--force", is_flag=True, help=f"Overwrite {what}")


def output(learned: bool = False) -> Decorator:
    """Return the option -o. A dictionary that is learned can also be named with -D, as when it is read."""
    names = ("-o", "--output", *(("-D", "--dictionary") if learned else ()), "output")
    place = PLACE if learned else PathOrUrl(urls=True, standard=True)
    words = "Dictionary to write" if learned else "Output file; - is standard output"
    return click.option(*names, type=place, metavar="FILE", help=words)


def converting(of: click.ParamType = PATH) -> Decorator:  # type: ignore[type-arg]
    """Return the arguments IN and OUT of a type, and -f."""
    return several(
        click.argument("source", metavar="IN", type=of), click.argument("target", metavar="OUT", type=of), force()
    )


def _note_limit(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
    """Let the command get both limits as one value, `limits`."""
    changed = {} if value is None else {"memory" if param.name == "memlimit" else "output": value}
    ctx.params["limits"] = replace(ctx.params.get("limits") or Limits(), **changed)


def _limit(name: str, help: str) -> Decorator:
    return click.option(name, metavar="SIZE", type=Size(), expose_value=False, callback=_note_limit, help=help)


limits = in_section(
    _LIMITS,
    _limit("--memlimit", "Memory for decoding, such as 4G; default: half of the free memory, at least 2G"),
    _limit("--max-output", "Size of the decoded content, such as 1G; default: no limit"),
)
saying = several(quiet, as_json)
computing = several(device, threads)
reading = several(
    click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path()),
    click.option("-r", "--recursive", is_flag=True, help="Take every file of the folders that are named"),
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Names or paths in folders to leave out, such as '*.log'; repeatable",
    ),
    threads,
    quiet,
    verbose,
    as_json,
)
writing = several(
    output(),
    click.option("-c", "--stdout", is_flag=True, help="Write to standard output"),
    click.option("--output-dir", type=PATH, metavar="DIR", help="Folder for the results, with the subfolders of -r"),
    click.option("-k", "--keep", "rm", flag_value=False, type=bool, default=False, help="Keep sources; the default"),
    click.option("--rm", "rm", flag_value=True, type=bool, help="Delete a source after its result is written"),
    force("existing files, and take links and special files"),
    reading,
)
coding = several(threads, quiet, as_json)
scoring = in_section(
    _TASKS,
    click.option("--tasks", metavar="NAMES", help="Tasks to score, such as hellaswag,arc_easy"),
    click.option(
        "--task-folder",
        metavar="DIR",
        type=PATH,
        help="Folder of lm-eval task files; these can run code: use only trusted ones",
    ),
    click.option("--task-limit", metavar="N", type=click.IntRange(1), help="Examples of each task; default: all"),
    click.option(
        "--shots", metavar="N", type=click.IntRange(0), help="Solved examples in each prompt; default: the task's own"
    ),
)
max_task_drop = in_section(
    _TASKS,
    click.option(
        "--max-task-drop",
        metavar="POINTS",
        type=click.FloatRange(0),
        help="Largest loss of accuracy on a task; exit code 3 if exceeded",
    ),
)
INPUTS = "Text, .npz file, or folder of images or WAV files to compare outputs on"
measuring = several(
    in_section(
        _QUALITY,
        click.option("--text", metavar="FILE", type=PATH, help="Text to measure perplexity on, before and after"),
        click.option(
            "--windows",
            metavar="N",
            type=click.IntRange(1),
            help="Windows of 1,024 tokens to measure; default: all (--text only)",
        ),
        click.option(
            "--max-ppl-increase",
            metavar="PERCENT",
            type=float,
            help="Largest increase of perplexity; exit code 3 if exceeded (--text only)",
        ),
        click.option(
            "--max-kl",
            metavar="NATS",
            type=click.FloatRange(0),
            help="Largest mean KL divergence; exit code 3 if exceeded (--text or --inputs only)",
        ),
        click.option("--inputs", metavar="PATH", type=PATH, help=INPUTS),
        click.option(
            "--max-error",
            metavar="SHARE",
            type=click.FloatRange(0),
            help="Largest relative error of an output; exit code 3 if exceeded (--inputs only)",
        ),
    ),
    scoring,
    max_task_drop,
)
caching = several(
    in_section(
        KV,
        click.option(
            "--kv-budget",
            metavar="SHARE",
            type=click.FloatRange(0, 1, min_open=True),
            help="Share of 16 bits per value, spread over the heads by calibration",
        ),
        click.option(
            "--calibration",
            metavar="FILE",
            type=PATH,
            help="Calibration text (--kv-budget and calibrated policies only)",
        ),
    ),
    computing,
    saying,
)
compressing = several(
    measuring,
    resume,
    converting(),
    computing,
    report,
    saying,
)
