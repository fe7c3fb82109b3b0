"""Write shards of sources one after the other, in this process."""

from squeeze.codecs.shards.plan import plan
from squeeze.codecs.shards.write import check_targets, make_shard


def write_shards(sources, targets, size, *, failed, overwrite=False, **options):
    """Write all sources to shards of at most `size` raw bytes, and yield each.

    Args:
        sources: files to write
        targets: names of the shards
        size: largest raw size of a shard in bytes
        failed: function that is called for each file that is skipped
        overwrite: whether existing shards are replaced
        options: further options of writing a shard
    """
    for planned in plan(sources, targets, size):
        check_targets(planned.target, overwrite)
        made = make_shard(planned.target, planned.sources, overwrite, **options)
        for source in planned.sources if made.skipped else ():
            if reason := made.skipped.get(source.name):
                failed(source, reason)
        if made.shard:
            yield made.shard
