"""Packed checkpoints in torch: tensors stay coded in memory and are decoded on access."""

from contextlib import ExitStack
from pathlib import Path

import torch

from squeeze.checkpoint.safetensors import Tensor
from squeeze.checkpoint.weight_files import own_files
from squeeze.errors import FormatError, LimitError, OptionError, escaped, printable
from squeeze.options import size_of
from squeeze.packing import container, folder
from squeeze.packing.base import Base
from squeeze.packing.container import PackedFile
from squeeze.packing.others import Others
from squeeze.packing.record import Record, naming
from squeeze.packing.sources import may_be_coded
from squeeze.packing.store.load import load as load_from_store
from squeeze.packing.store.store import Store, is_store
from squeeze.packing.tensors.content import Content, InFile, whole
from squeeze.packing.weights import Entry, Weights, stays_coded
from squeeze.system.binary import Positional
from squeeze.system.hub import local_copy
from squeeze.system.limits import Limits
from squeeze.system.storage import local_path, path_of

__all__ = ["load"]

_NAMED = 3  # models listed in a message


def load(
    path: Path | str,
    device: str = "cpu",
    *,
    model: str | None = None,
    base: Path | str | None = None,
    threads: int = 1,
    limits: Limits | None = None,
    resident: int | str = 0,
) -> Weights:
    """Open a packed file or folder, or a model of a store, as a mapping from names to tensors, which are decoded on
    each access.

    The payloads are read into the memory of `device` at once; a GPU decodes them there. Tensors of the archive level,
    on a GPU those of the fast level, and differences are decoded at once and kept decoded. A tensor's checksum is
    compared when it is first decoded, which copies it from a GPU once; `squeeze.verify` compares all.

    Args:
        path: a file or folder, or a URL of fsspec; or the folder of a store.
        device: torch device for payloads and tensors.
        model: the name of the model if `path` is a store.
        base: the checkpoint that a difference needs; found in the folder of `path` if not given.
        threads: threads that decode a tensor on the CPU.
        limits: bounds of memory and output.
        resident: bytes, or a text such as "2G". Tensors, in order, that fit into them are decoded now and kept, and
            every access returns the same one.

    Raises OptionError for another text, FormatError if `path` is neither packed nor a store, DamagedError, and
    LimitError.

    >>> weights = load("my-model-packed", device="cuda")  # doctest: +SKIP
    >>> tuned = load("my-store", model="my-model-tuned")  # doctest: +SKIP
    >>> weights["lm_head.weight"].shape  # doctest: +SKIP
    """
    path, limits = local_copy(path_of(path)), limits or Limits()
    resident_size = size_of(resident) if isinstance(resident, str) else resident
    if model is not None or is_store(path):
        weights = _from_store(path, model, device, threads, limits, base)
    else:
        weights = _from_files(path, device, base, threads, limits, resident_size)
    weights.keep(resident_size)
    return weights


def _from_store(
    path: Path, model: str | None, device: str, threads: int, limits: Limits, base: Path | str | None
) -> Weights:
    """Load a model of a store. Raises OptionError if no model, or a base is named."""
    store = Store(local_path(path), limits)
    if model is None:
        known = ", ".join(map(printable, store.names()[:_NAMED])) or "no model"
        raise OptionError(f"{escaped(str(path))}: is a store: name one of its models (model=...): it has {known}")
    if base is not None:
        raise OptionError("a store has the bases of its differences: leave out base")
    return load_from_store(store, model, device, threads)


def _from_files(
    path: Path, device: str, base: Path | str | None, threads: int, limits: Limits, resident_size: int
) -> Weights:
    """Load packed files, all of a folder. resident_size: bytes that will be kept decoded, for the limits."""
    found = folder.files_to_take(path)
    names = [name for name in found if not name or name.endswith(folder.SUFFIX)]
    if not names:
        raise _no_weights(path)
    base_weights = Base.needed(path, base, limits)
    entries: dict[Path, dict[str, Entry]] = {}
    memory = raw = 0
    for name in names:
        place = folder.place(path, name)
        try:
            packed = container.read(place, limits)
            raw += packed.description.size
            if torch.device(device).type == "cpu":
                memory += _resident_bytes(packed)
                limits.need_memory(memory + min(resident_size, raw), f"the checkpoint of {packed.file.size:,} bytes")
            limits.need_output(raw)
            container.check_limits(packed, limits)
            _check_base(packed, base_weights)
            entries[place] = _entries(packed, device, Others(packed, base_weights, limits), threads)
        except (FormatError, LimitError) as error:
            raise type(error)(f"{escaped(str(place))}: {error}") from None
    own = own_files(entries, folder.indexes_in(path, found))
    return Weights({name: entries[place][name] for name, place in own.items()}, threads)


def _no_weights(path: Path) -> FormatError:
    name = next(name for name in folder.files_to_take(path) if may_be_coded(name))
    maker = "torch.distributed.checkpoint" if name.endswith(".distcp") else "torch.save"
    found = f"a file of {maker}, not of safetensors ({printable(name)})"
    return FormatError(f"{escaped(str(path))}: {found}: restore it by `squeeze unpack` and load it with torch")


def _resident_bytes(packed: PackedFile) -> int:
    """Return the bytes that stay in memory."""
    pairs = zip(packed.file.tensors, packed.description.records, strict=True)
    return sum(tensor.size if stays_coded(record, "cpu") else record.size for tensor, record in pairs)


def _check_base(packed: PackedFile, base: Base | None) -> None:
    if base and packed.description.base:
        base.check(packed.description.base)


def _entries(packed: PackedFile, device: str, others: Others, threads: int) -> dict[str, Entry]:
    with packed.file.path.open("rb") as reading:
        file, entries = Positional(reading), {}
        for tensor, record in zip(packed.file.tensors, packed.description.records, strict=True):
            payload = InFile(file, tensor.begin, tensor.size)
            entries[tensor.name] = _entry(tensor, record, payload, device, others, threads)
    return entries


def _entry(tensor: Tensor, record: Record, payload: Content, device: str, others: Others, threads: int) -> Entry:
    name = tensor.name
    with ExitStack() as opened:
        if found := others.payload_of(tensor, record, opened):
            payload, record = found
        is_coded, other = stays_coded(record, device), others.content_for(record, name, "", opened)
        with naming(name):
            is_ready = is_coded or record.coding.is_stored
            data = whole(payload if is_ready else record.decode_parts(payload, other, threads), threads)
            entry = Entry(name, record, torch.from_numpy(data).to(device), is_coded)
    if not is_ready:
        record.check(data, name)
    return entry
