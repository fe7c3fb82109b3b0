"""Checks, before any work, of which matrices fit the grid and format, and what replaces the method for others.

If rows are not whole groups, the group size becomes the largest smaller one that kernels support. Matrices that none
fits stay as they are.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import dense_model
from squeeze.checkpoint.renaming import model_modules
from squeeze.engine.expert_names import is_expert
from squeeze.engine.network import Network, weight_of
from squeeze.engine.selection import plan
from squeeze.errors import FormatError, OptionError
from squeeze.integrations.opening import unopened
from squeeze.operations import Request
from squeeze.quant.formats import FORMATS
from squeeze.quant.method import GridMethod
from squeeze.quant.methods import SCHEMES
from squeeze.recipes.options import Quantizing
from squeeze.recipes.quantizing.writing import DENSE, grid_of

__all__ = ["Fitted", "fitted", "fitting", "method_of_scheme", "scaled_as", "settings_of_scheme"]

_SAID = ("bits", "group_size", "symmetric", "grid")  # by a scheme itself


def method_of_scheme(request: Request[Quantizing]) -> GridMethod:
    """Return the requested method, on the grid of the scheme if one is given.

    Raises OptionError for options that exclude a scheme.
    """
    settings = request.settings
    method: GridMethod = request.create_method()
    if settings.scheme is None:
        return method
    scheme = SCHEMES[settings.scheme]
    if not isinstance(request.method, str):
        raise OptionError("a scheme needs a method that is named")
    own = "group_size" in request.method_options and scheme.any_group
    if conflicting := [name for name in _SAID if name in request.method_options and not (own and name == "group_size")]:
        raise OptionError(f"{conflicting[0]} cannot be set with the scheme {settings.scheme}, which decides it")
    if not isinstance(method, GridMethod):
        raise OptionError(f"a scheme needs a method on a grid, got {method.name}")
    if settings.target_bits is not None or settings.target_bytes is not None:
        raise OptionError("the bits of a scheme cannot be chosen by size")
    if getattr(method, "dynamic", False) or getattr(method, "outliers", 0):
        raise OptionError("a scheme has neither dynamic scales nor outlier columns")
    return method.replaced(
        grid=scheme.grid,
        bits=scheme.bits,
        group_size=method.group_size if own else scheme.group_size,
        symmetric=scheme.symmetric,
        activations=scheme.activations,
    )


def settings_of_scheme(settings: Quantizing, given: Collection[str]) -> Quantizing:
    """Return the settings in the format of their scheme, if they have one.

    `given` are the names of the options that the caller set. Raises OptionError if another format is one of them.
    """
    if settings.scheme is None or (own := SCHEMES[settings.scheme].format) == settings.format:
        return settings
    if "format" in given:
        raise OptionError(f"`scheme` {settings.scheme} needs the format {own}, got {settings.format}")
    return replace(settings, format=own)


_WANTED = (
    "transformers wants its dense weight while it loads a folder: the format squeeze holds it, and so does "
    "the scheme fp8_dynamic"
)
_SIZES = (128, 64, 32, -1)  # of groups; -1: one scale a row


@dataclass(frozen=True)
class Fitted:
    """Methods of all matrices.

    `method` is that of most matrices and `methods` has each, by the checkpoint's name. `excluded` are matrices that
    cannot be stored, by the network's name. `remarks` are by the checkpoint's name, on what differs from the request.
    `names` are those that transformers gives to renamed matrices. `network` is the checkpoint's, without weights.
    """

    method: GridMethod
    methods: Mapping[str, GridMethod]
    excluded: tuple[str, ...]
    remarks: Mapping[str, str]
    names: Mapping[str, str]
    network: Network

    @property
    def exceptions(self) -> dict[str, GridMethod]:
        """Methods of matrices that differ from the common one."""
        return {name: one for name, one in self.methods.items() if one != self.method}


def fitted(
    checkpoint: Checkpoint,
    method: GridMethod,
    methods: Mapping[str, GridMethod],
    format: str,
    ignore: tuple[str, ...],
    keeps_size: bool = False,
) -> Fitted:
    """Find a method for each matrix of a checkpoint's blocks.

    Args:
        checkpoint: The checkpoint.
        method: The common method.
        methods: Methods of single modules, by the checkpoint's name.
        format: The format.
        ignore: Parts of the names of modules to leave alone.
        keeps_size: Whether the group size was asked for, so that other ones may not replace it everywhere.

    Raises:
        FormatError: If no matrix can be stored, or one is transposed in a format without transposed matrices, or none
            has the group size.
    """
    network = Network(checkpoint)
    by_name: dict[str, GridMethod] = {}
    wrong: dict[str, str] = {}
    shapes: dict[str, tuple[int, int]] = {}
    names: dict[str, str] = {}
    excluded = []
    for name in [f"{block}.{leaf}" for block in network.blocks for leaf in plan(network, block, ignore)[0]]:
        stored, module = network.stored_name(name), network.module(name)
        names[stored] = name
        outputs, inputs = weight_of(module).shape
        shapes[stored] = outputs, inputs
        _check_transposed(stored, module, format)
        serving, fault = fitting(methods.get(stored, method), format, *shapes[stored])
        if fault:
            wrong[stored] = fault
        if serving is None:
            excluded.append(name)
        else:
            by_name[stored] = serving
    for stored in _unopened(checkpoint, by_name, format):
        wrong[stored] = _WANTED
        excluded.append(names[stored])
        del by_name[stored]
    if excluded and not by_name:
        raise FormatError(f"{checkpoint.folder}: no matrix can be stored: {next(iter(wrong.values()))}")
    if keeps_size:
        _check_group_size(method.group_size, by_name.values(), wrong)
    alone = isinstance(method, GridMethod) and format in FORMATS and FORMATS[format].needs_one_grid(grid_of(method))
    same = alone and not methods and len(set(by_name.values())) > 1
    if same:
        by_name = dict.fromkeys(by_name, _alike(method, format, [shapes[name] for name in by_name]))
        wrong = {name: wrong.get(name, "all are to have the same") for name in shapes}
    remarks = {
        name: f"{_groups(by_name[name])}, as {fault}" if name in by_name else fault for name, fault in wrong.items()
    }
    common, renamed = _most(method, by_name, methods), _renamed(checkpoint, names)
    return Fitted(common, by_name, tuple(excluded), remarks, renamed, network)


def _check_group_size(size: int, methods: Iterable[GridMethod], wrong: Mapping[str, str]) -> None:
    """Raise FormatError if a group size fits no matrix, and other ones would replace it everywhere."""
    others = {one.group_size for one in methods if isinstance(one, GridMethod)}
    if wrong and others and size not in others:
        able = " or ".join(str(other) for other in sorted(others, reverse=True))
        raise FormatError(f"`group_size` {size} fits no matrix: {next(iter(wrong.values()))}: use {able}")


def _renamed(checkpoint: Checkpoint, names: Mapping[str, str]) -> dict[str, str]:
    """Return the names that the loading class gives to matrices that it renames, by the checkpoint's names."""
    if all(stored == name or is_expert(stored) for stored, name in names.items()):
        return {}
    found = model_modules(dense_model(checkpoint.folder), names)
    return {stored: name for stored, name in found.items() if stored != name}


def _unopened(checkpoint: Checkpoint, methods: Mapping[str, GridMethod], format: str) -> set[str]:
    """Return the matrices that transformers cannot load from a format, because it reads a dense weight meanwhile."""
    if format not in FORMATS:
        return set()
    grids = {name: grid_of(one) for name, one in methods.items() if isinstance(one, GridMethod)}
    lost = [name for name, grid in grids.items() if not FORMATS[format].keeps_weight(grid)]
    if not lost:
        return set()
    return unopened(checkpoint.folder, lost)


def _check_transposed(name: str, module: nn.Module, format: str) -> None:
    """Raise FormatError for a transposed matrix in a format without transposed matrices."""
    if not isinstance(module, nn.Linear) and format in FORMATS and not FORMATS[format].transposed:
        able = [DENSE, *(one for one, other in FORMATS.items() if other.transposed)]
        raise FormatError(f"{name}: is stored transposed, which only the formats {' and '.join(able)} hold")


def _alike(method: GridMethod, format: str, shapes: Iterable[tuple[int, int]]) -> GridMethod:
    """Return the method with the largest smaller group size that fits matrices of all these shapes."""
    for size in (size for size in _SIZES if size < method.group_size):
        smaller = method.replaced(group_size=size)
        if not any(_misfit(smaller, format, *shape) for shape in shapes):
            break
    return smaller


def _groups(method: GridMethod) -> str:
    return "one scale a row" if method.group_size == -1 else f"groups of {method.group_size}"


def fitting(method: GridMethod, format: str, outputs: int, inputs: int) -> tuple[GridMethod | None, str | None]:
    """Return the method, or the one with the largest smaller group size that fits, or None; and what is wrong with the
    method.
    """
    wrong = _misfit(method, format, outputs, inputs)
    if wrong is None:
        return method, None
    if method.as_quantizer().group_size is None:
        for size in _SIZES:
            smaller = method.replaced(group_size=size)
            if size < method.group_size and _misfit(smaller, format, outputs, inputs) is None:
                return smaller, wrong
    return None, wrong


def scaled_as(method: GridMethod, format: str) -> GridMethod:
    """Return the method with scales of the dtype that the format stores."""
    own = FORMATS[format].scale_dtype if format in FORMATS else None
    return method if own is None else method.replaced(scale_dtype=own)


def _misfit(method: GridMethod, format: str, outputs: int, inputs: int) -> str | None:
    if not isinstance(method, GridMethod):  # a method without grids takes any shape, and stores it in its own form
        return None
    if wrong := method.misfit(inputs):
        return wrong
    return FORMATS[format].misfit(grid_of(method), outputs, inputs) if format in FORMATS else None


def _most(method: GridMethod, found: Mapping[str, GridMethod], methods: Mapping[str, GridMethod]) -> GridMethod:
    """Return the method that most matrices got for which `method` was requested."""
    serving = [one for name, one in found.items() if name not in methods]
    if not serving or method in serving:
        return method
    return Counter(serving).most_common(1)[0][0]
