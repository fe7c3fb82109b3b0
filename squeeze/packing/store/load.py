"""Models of a store in torch: tensors stay coded in memory and are decoded on access, as those of packed folders."""

import torch

from squeeze.checkpoint.safetensors import fits, named
from squeeze.errors import DamagedError
from squeeze.packing.codings import STORED
from squeeze.packing.record import Record
from squeeze.packing.store.models import Entry
from squeeze.packing.store.store import Store
from squeeze.packing.weights import Entry as Loaded, Weights, stays_coded

__all__ = ["load"]


def load(store: Store, name: str, device: str = "cpu", threads: int = 1) -> Weights:
    """Load the safetensors of a model from a store.

    Differences, and codings that the device does not decode, are decoded at once and kept decoded.

    Args:
        store: the store.
        name: the model's name in it.
        device: torch device for payloads and tensors.
        threads: threads that decode.

    Raises SqueezeError if the store does not have the model, and DamagedError if an object of it is damaged.
    """
    files = [file for file in store.model(name).files.values() if file.is_safetensors]
    with store.held():
        entries = {one.name: _loaded(store, one, device, threads) for file in files for one in file.tensors}
    return Weights(entries, threads)


def _loaded(store: Store, entry: Entry, device: str, threads: int) -> Loaded:
    header = store.objects.header(entry.key)
    record = header.record
    if not fits(entry.dtype, entry.shape, record.size):
        raise DamagedError(f"{named(entry.name)}: object {entry.key[:16]} has another size")
    like = Record(entry.dtype, entry.shape, record.coding, record.checksum, record.length)
    stays = stays_coded(record, device)
    if stays and like.layout == record.layout:
        data = store.objects.payload(entry.key, header)
    else:
        stays, data = False, store.objects.read(entry.key, threads)
        like = Record(entry.dtype, entry.shape, STORED, record.checksum, record.length)
    return Loaded(entry.name, like, torch.from_numpy(data).to(device), stays)
