"""Summaries of opened wrappers agree with the files, and blocks are added up."""

import io
from typing import Any

import pytest

import squeeze
from squeeze.codecs.stream import container, contents
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.resources import Resources, Totals
from squeeze.codecs.stream.settings import from_header
from squeeze.codecs.stream.summing import read_contents
from tests.makers import inputs, wrapped

DOCUMENTS = wrapped.documents()


def totals(data: bytes, **options: Any) -> Totals:
    return squeeze.compress_stream(io.BytesIO(data), io.BytesIO(), **options)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_totals_have_what_was_opened(name):
    found = totals(DOCUMENTS[name], level=1)
    assert found.opened is not None and sum(found.opened.wrappers.values()) >= 1
    assert found.opened.raw_size == len(DOCUMENTS[name])
    assert sum(group.opened for group in found.opened.groups) == found.opened.opened_size
    coded = found.opened.plan_size + sum(group.coded for group in found.opened.groups)
    assert coded <= found.coded <= coded + 100


def test_blocks_are_added_up():
    data = wrapped.zip_archive({"a": inputs.words(40_000)}) * 3
    found = totals(data, level=1, block_size=len(data) // 3)
    assert found.opened is not None
    assert found.opened.wrappers == {"zip member": 3} and found.opened.raw_size == len(data)
    assert [(group.content, group.codec) for group in found.opened.groups].count(("text", "bytewise")) == 1


def test_nothing_opened_is_nothing_told():
    assert totals(inputs.words(3_000), level=1).opened is None
    assert totals(DOCUMENTS["zip"], level=1, parse=False).opened is None


def test_wrappers_among_repeats_are_told():
    text, archive = inputs.random_bytes(60_000), wrapped.zip_archive({"a": inputs.words(30_000)})
    data = text + text[:50_000] + archive
    sink = io.BytesIO()
    found = squeeze.compress_stream(io.BytesIO(data), sink, level=1, block_size=60_000, long=1 << 20)
    blocks = [(stream, block) for stream in read_index(sink) for block in stream.blocks]
    kinds = {block.kind for _, block in blocks}
    assert found.opened is not None and container.REPEATS in kinds
    told = []
    for stream, block in blocks:
        settings = from_header(container.Header(stream.header, 0, stream.short), Resources())
        payload = sink.getvalue()[block.coded_offset + block.coded_length - block.payload_length :][
            : block.payload_length
        ]
        told.append(read_contents(container.Coded(block.kind, payload), block.raw_length, settings))
    assert contents.merged(filter(None, told)) == found.opened
    assert squeeze.decompress(sink.getvalue()) == data
