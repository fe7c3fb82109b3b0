"""Generated documents are the same for the same seed, varied, and valid in their format."""

import csv
import email
import io
import json
import zlib
from itertools import islice

import pytest

from training.generate import logs, mail, records
from training.generate.logs import FORMATS
from training.generate.world import World, tenses

PASSAGES = [
    "One day the river rose.\n\nNobody had seen it so high since the spring of the great flood.",
    "Another text.",
]


def test_logs_are_deterministic_and_of_every_format() -> None:
    first = list(islice(logs.documents(1), len(FORMATS)))
    assert first == list(islice(logs.documents(1), len(FORMATS)))
    assert first != list(islice(logs.documents(2), len(FORMATS)))
    assert [name for name, _ in first] == list(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_lines_of_a_log_are_alike_but_not_the_same(name: str) -> None:
    content = logs.filled(FORMATS[name](World(5)), 30_000)
    lines = content.decode().splitlines()
    assert len(set(lines)) > 0.1 * len(lines)
    assert 2 < len(content) / len(zlib.compress(content, 9)) < 40


def test_clocks_run_forward() -> None:
    lines = logs.filled(FORMATS["logfmt"](World(3)), 20_000).decode().splitlines()
    clocks = [line.partition(" ")[0] for line in lines]
    assert clocks == sorted(clocks)


def test_tables_have_as_many_fields_in_every_row() -> None:
    for _, content in islice(records.tables(1), 12):
        text = content.decode()
        header = text.splitlines()[0]
        separator = max(",;\t", key=header.count)
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
        assert len(rows) > 3 and len({len(row) for row in rows}) == 1


def test_records_are_json() -> None:
    for name, content in islice(records.records(1), 15):
        parts = content.splitlines() if name == "events" else [content]
        assert all(json.loads(part) for part in parts)


def test_mail_has_headers_and_the_passage() -> None:
    for form, content in islice(mail.documents(1, PASSAGES), 12):
        text = content.decode()
        message = email.message_from_string(text.partition("\n")[2] if form == "mbox" else text)
        assert message["From"] and message["Message-ID"] and message["Date"]
    assert "river rose" in "".join(content.decode() for _, content in islice(mail.documents(1, PASSAGES), 12))


def test_verbs_have_their_tenses() -> None:
    assert tenses("update") == ("updated", "updating")
    assert tenses("write") == ("wrote", "writing")
