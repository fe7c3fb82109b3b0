"""`squeeze info`: facts as a table and as JSON."""

import json

from tests.makers.command import run


def test_info():
    facts = json.loads(run("info", "--json").stdout)
    assert facts["squeeze"] == "0.1.0"
    assert facts["levels"] == "1, 2, 3, 4, 5, 6, 7, 8, 9"
    text = run("info").stdout
    assert f"processor:        {facts['processor']}\n" in text
    assert f"compiled code:    {facts['compiled_code']}\n" in text
