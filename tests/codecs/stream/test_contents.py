"""Summaries of opened wrappers are added up."""

from squeeze.codecs.stream import contents
from squeeze.codecs.stream.contents import Contents, Group


def test_sums_keep_contents_and_codecs_apart():
    one = Contents({"gzip": 1}, 10, 20, 3, (Group("text", "bytewise", 15, 4), Group("text", "stored", 5, 5)))
    two = Contents({"zlib": 2}, 1, 2, 3, (Group("text", "stored", 2, 2),))
    assert contents.merged([one, two]) == Contents(
        {"zlib": 2, "gzip": 1}, 11, 22, 6, (Group("text", "bytewise", 15, 4), Group("text", "stored", 7, 7))
    )
    assert contents.merged([]) is None
