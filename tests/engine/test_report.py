"""Reports that are read again: of squeeze, or one line."""

import json

import pytest

from squeeze.engine.report import NAME, Layer, Report, settings_in_words
from squeeze.errors import FormatError
from tests.faults.disk import Disk, full_from

GOOD = Report("a", "b", "rtn", "squeeze", {"bits": 4})
HOSTILE = {
    "layers": [None, 1, "x", [1], [{}], [{"shape": 3}]],
    "before": [1, "x", [1], {"a": 1}],
    "packed": [1, 2.5],
}


def test_a_report_is_read_again(tmp_path):
    (tmp_path / NAME).write_text(json.dumps(GOOD.as_json()))
    assert Report.read(tmp_path).as_json() == GOOD.as_json()


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in HOSTILE.items() for value in values])
def test_other_files_are_refused(tmp_path, key, value):
    (tmp_path / NAME).write_text(json.dumps(GOOD.as_json() | {key: value}))
    with pytest.raises(FormatError, match="not a report of squeeze, or damaged"):
        Report.read(tmp_path)
    (tmp_path / NAME).write_text("[]")
    with pytest.raises(FormatError, match="is not a JSON object"):
        Report.read(tmp_path)


def test_a_full_disk_leaves_report_and_card_as_they_were(tmp_path):
    GOOD.write(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with Disk(tmp_path, full_from(2)).installed(), pytest.raises(OSError, match="No space left"):
        Report("a", "b", "gptq", "squeeze", {"bits": 3}).write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_card_that_is_not_utf8_keeps_its_bytes(tmp_path):
    (tmp_path / "README.md").write_bytes(b"# Mod\xe8le\n\n## Compression\n\nolder\n")
    for _ in range(2):
        GOOD.write(tmp_path)
        card = (tmp_path / "README.md").read_bytes()
        assert card.startswith(b"# Mod\xe8le\n\n## Compression\n\nBy squeeze: bits 4.") and b"older" not in card


def test_the_same_of_several_matrices_is_said_once(tmp_path):
    why = "q5_0 in place of q4_k"
    layers = [Layer(f"m{n}", (32, 32), "rtn", 5.5, None, 0, (why,)) for n in range(3)]
    layers.append(Layer("last", (32, 32), "rtn", 8.5, None, 0, ("q8_0 in place of q6_k",)))
    report = Report("a", "b", "rtn", "gguf", {}, layers, notes=["of the whole"])
    lines = ["of the whole", f"3 matrices, such as m0: {why}", "last: q8_0 in place of q6_k"]
    assert [line for line in report.table().splitlines() if line.startswith("Note: ")] == [f"Note: {n}" for n in lines]
    assert all(f"\n- {line}\n" in report.card() for line in lines)
    assert len(report.as_json()["fallbacks"]) == 5


def test_settings_are_in_words():
    settings = {"act_order": True, "sweep": False, "bound": None, "ignore": [], "types": {"q4_k": 3}, "sizes": [1, 2]}
    shown = {"act order": "yes", "sweep": "no", "ignore": "none", "types": "q4_k 3", "sizes": "1, 2"}
    assert settings_in_words(settings) == shown
