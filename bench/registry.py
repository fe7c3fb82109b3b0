"""All benchmarks by name. Each is measured by bench/measures/NAME.py."""

from bench.entries import caches, checkpoints, clusters, files, gpus, models, pages, public, text
from bench.entry import Entry

ENTRIES: dict[str, Entry] = {
    **files.ENTRIES,
    **clusters.ENTRIES,
    **pages.ENTRIES,
    **public.ENTRIES,
    **text.ENTRIES,
    **checkpoints.ENTRIES,
    **models.ENTRIES,
    **caches.ENTRIES,
    **gpus.ENTRIES,
}
