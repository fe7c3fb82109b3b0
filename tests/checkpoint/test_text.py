"""Texts: files, and data sets of this machine, for which no server is asked."""

import json
import socket

import pytest

from squeeze.checkpoint.text import read_text
from squeeze.errors import SqueezeError


def test_a_data_set_of_this_machine(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in "ab"))
    assert read_text(tmp_path / "texts") == "a\n\nb"
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *place, **options: asked.append(place))
    with pytest.raises(SqueezeError, match=r"nobody/nothing: no such file, and no data set on this machine: "):
        read_text("nobody/nothing")
    assert not asked


def test_lines_of_json_end_at_line_feeds_alone(tmp_path):
    texts = ["one\u2028two", "three\x85four\u2029five", "six"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / "lines.jsonl").write_bytes("\r\n".join([*lines[:2], "", *lines[2:]]).encode() + b"\n")
    assert read_text(tmp_path / "lines.jsonl") == "\n\n".join(texts)
