"""`squeeze info`: facts as a table and as JSON."""

import json

from squeeze.kernels import choices
from squeeze.recipes import about
from tests.makers.command import run


def test_info():
    facts = json.loads(run("info", "--json").stdout)
    assert facts["squeeze"] == "0.1.0"
    assert facts["levels"] == "1, 2, 3, 4, 5, 6, 7, 8, 9"
    text = run("info").stdout
    assert f"processor:        {facts['processor']}\n" in text
    assert f"compiled code:    {facts['compiled_code']}\n" in text


def test_what_is_fastest_on_a_gpu_is_told(monkeypatch):
    monkeypatch.setattr(about, "_gpus", lambda: ["A GPU", "A GPU"])
    monkeypatch.setattr(choices, "remembered", lambda device: {f"a shape on {device}": "dense"})
    assert about.gather()["fastest_kernels"] == ["a shape on A GPU: dense"]
