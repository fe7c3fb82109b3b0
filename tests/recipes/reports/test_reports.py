"""Pages of reports: what is shown of each command's report, and errors."""

import base64
import json
import re
import zlib

import pytest

from squeeze.errors import FormatError
from squeeze.recipes.reports.page import read, render, shown, write
from squeeze.recipes.reports.page_data import MEASURES, parts_of, place
from tests.makers import reports

pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")


def facts_of(page: str) -> dict:
    packed = re.search(r'<script id="facts" type="application/octet-stream">([^<]*)</script>', page)
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


def test_a_model_report_becomes_facts_matrices_and_parts():
    record = reports.model()
    (run,) = shown([record])
    assert run.lead == (
        f"gptq, format squeeze: 269,030,016 bytes become {record['stored_bytes']:,} "
        f"({100 * record['stored_bytes'] / 269030016:.1f} %), 4.250 bits a weight of 210 matrices, "
        f"{record['bits_per_parameter']:.3f} a parameter of the whole."
    )
    assert run.warnings == tuple(record["fallbacks"]) and run.left == ("lm_head: outside the blocks",)
    matrix, layer = run.matrices[8], record["layers"][8]
    assert (matrix.layer, matrix.matrix) == (1, "self_attn.k_proj")
    assert matrix.values == {key: layer[key] for key in ("error", "bits", "sparsity", "rank", "seconds")}
    assert matrix.values.keys() <= MEASURES.keys() and matrix.histogram == layer["histogram"]
    assert sum(part.bytes for part in run.parts) == record["stored_bytes"]
    assert [(one.what, one.who, one.low is None) for one in run.quality] == [
        ("perplexity", "before", False),
        ("perplexity", "after", False),
        ("perplexity, times the original's", "after", False),
        ("KL, nats a token", "after", False),
        ("same most probable token", "after", False),
    ]
    (row,) = run.rows
    assert row["rise"] == pytest.approx(0.025) and row["kl"] == record["after"]["kl_mean"]


def test_an_older_report_has_less():
    record = reports.model()
    for layer in record["layers"]:
        del layer["rank"], layer["seconds"], layer["histogram"]
    del record["parts"]
    record["before"] = record["after"] = None
    (run,) = shown([record])
    assert sum(part.bytes for part in run.parts) == record["stored_bytes"]
    assert not run.quality and run.matrices[0].values["rank"] is None


def test_a_page_holds_everything():
    pages = {
        "model": render(shown([reports.model()])),
        "apply": render(shown([reports.model("a", 8, 2), reports.model("b", 4, 2)])),
        "files": render(shown(reports.files())),
        "caches": render(shown(reports.caches())),
        "tensors": render(shown([reports.tensors()])),
    }
    for page in pages.values():
        assert page.startswith("<!DOCTYPE html>") and page.count("</script>") == 3
        before, _, behind = page.split('<script type="module">')  # between them Vega
        assert not re.search(r"(src|href|url)[=(](?!\"?#)", before + behind)
    assert len(pages["model"]) < 2_000_000
    facts = {name: facts_of(page) for name, page in pages.items()}
    assert [run["name"] for run in facts["apply"]["runs"]] == ["1. a", "2. b"]
    assert "zpaq -m5: the round trip changed the bytes" in pages["files"]
    all_files = [row["tool"] for row in facts["files"]["runs"][0]["rows"] if row["file"] == "all files"]
    assert all_files == ["squeeze -1", "squeeze -6", "xz -9e"]
    assert facts["caches"]["runs"][0]["rows"][4]["rise"] == 0.01
    assert facts["tensors"]["runs"][0]["matrices"][0]["values"]["gap"] == 0.0075


def test_numbers_that_json_lacks():
    record = reports.model()
    record["after"]["perplexity"] = float("inf")
    record["layers"][0]["error"] = float("nan")
    (run,) = facts_of(render(shown([record])))["runs"]
    assert run["matrices"][0]["values"]["error"] is None and run["rows"][0]["perplexity"] is None


def test_names_cannot_add_markup():
    record = reports.model("</script><b>")
    record["fallbacks"] = ["<i>"]
    page = render(shown([record]))
    assert "<b>" not in page and "<i>" not in page and page.count("</script>") == 3


def test_a_lone_surrogate_of_a_report_is_replaced(tmp_path):
    write(tmp_path / "page.html", shown([reports.model("model-\ud800")]))
    assert "model-\ufffd" in (tmp_path / "page.html").read_text("utf-8")


def test_a_name_gives_layer_and_matrix():
    assert place("model.layers.12.mlp.experts.3.up_proj") == (12, "mlp.experts.3.up_proj")
    assert place("transformer.h.0.attn.c_attn.weight") == (0, "attn.c_attn")
    assert place("model.embed_tokens") == (None, "model.embed_tokens")


def test_small_parts_of_the_treemap_are_joined():
    parts = parts_of({"a": 10_000, "model.layers.0.norm": 3, "model.layers.1.norm": 4, "b": 2}, {"a": 4.0})
    assert [(part.id, part.parent, part.bytes) for part in parts] == [
        ("*", None, 0),
        ("/a", "*", 0),
        ("a", "/a", 10_000),
        ("/", "*", 0),
        ("//", "/", 9),
    ]
    assert parts_of({}, {}) == ()


def test_reports_are_read_from_files_lines_and_folders(tmp_path):
    one, many, lines = tmp_path / "one.json", tmp_path / "many.json", tmp_path / "lines.json"
    one.write_text(json.dumps(reports.model(blocks=1)))
    many.write_text(json.dumps([reports.model(blocks=1)] * 2))
    lines.write_text("\n".join(map(json.dumps, reports.files())))
    (tmp_path / "compression_report.json").write_text(one.read_text())
    assert [len(read(path)) for path in (one, many, lines, tmp_path)] == [1, 2, 1, 1]


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[1]", "nonsense", '{"layers": 3}', '{"tool": "x"}', '{"tool": "x"}\n{"policy": "y"}', "\ud800"],
)
def test_refuses_files_that_are_not_reports(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(FormatError, match=r"x\.json: is not a report of squeeze, or damaged"):
        read(path)
