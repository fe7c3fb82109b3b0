"""All benchmarks by name. Each is measured by bench/measures/NAME.py."""

from bench.entries import (
    caches,
    checkpoints,
    clusters,
    dictionaries,
    factorised,
    files,
    gpus,
    pages,
    products,
    pruned,
    public,
    quantised,
    start,
    text,
    zoo,
)
from bench.entry import Entry

ENTRIES: dict[str, Entry] = {
    **start.ENTRIES,
    **files.ENTRIES,
    **dictionaries.ENTRIES,
    **clusters.ENTRIES,
    **pages.ENTRIES,
    **public.ENTRIES,
    **text.ENTRIES,
    **checkpoints.ENTRIES,
    **products.ENTRIES,
    **quantised.ENTRIES,
    **pruned.ENTRIES,
    **factorised.ENTRIES,
    **caches.ENTRIES,
    **gpus.ENTRIES,
    **zoo.ENTRIES,
}
