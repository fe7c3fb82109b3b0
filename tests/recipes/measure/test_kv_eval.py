"""`squeeze kv-eval`: its output, errors and measurements."""

import json

import pytest

from tests.makers import tiny_models
from tests.makers.command import call


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.write_endless(tmp_path_factory.mktemp("kv") / "model")


@pytest.fixture(scope="module")
def text(folder):
    path = folder.parent / "text.txt"
    path.write_bytes(tiny_models.TRAINING_TEXT[:6000])
    return path


def test_kv_eval_as_a_table(folder, text):
    found = call("kv-eval", folder, "--text", text, "--policy", "kivi:8,group=16", "--policy", "rotated:2", "--context",
                 200, "--windows", 2, "--passkeys", 1, "-T", 1)  # fmt: skip
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[0].split() == ["policy", "context", "bits", "perplexity", "%", "KL", "cache", "bytes", "peak", "bytes",
                                "ms/token", "passkeys"]  # fmt: skip
    assert [line.split()[0] for line in lines[1:]] == ["full", "kivi:8,group=16", "rotated:2"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_kv_eval_in_16_bits(folder, text, dtype):
    """GPUs use 16 bits: every way of measuring and calibration run."""
    words = "kivi:4", "rotated:3", "blockfloat:4,ordered=1", "transform:3", "kivi:mean=6,group=16", "kivi:4+snapkv:40"
    policies = [word for one in words for word in ("--policy", one)]
    found = call("kv-eval", folder, "--text", text, *policies, "--calibration", text, "--context", 200, "--windows", 1,
                 "--passkeys", 1, "--dtype", dtype, "--json", "-T", 1)  # fmt: skip
    assert found.exit_code == 0, found.output
    rows = list(map(json.loads, found.output.splitlines()))
    assert {row["policy"] for row in rows} == {"full precision", *words}
    assert all(0 <= row["distance"]["kl"] < 5 for row in rows)  # of weights that were drawn


def test_archives_are_measured_through_their_files(folder, text):
    policies = [word for bits in (4, 1) for word in ("--policy", f"archive:{bits}")]
    found = call("kv-eval", folder, "--text", text, *policies, "--calibration", text, "--context", 200, "--windows", 1,
                 "--json", "-T", 1)  # fmt: skip
    assert found.exit_code == 0, found.output
    full, *_, fine, coarse = map(json.loads, found.output.splitlines())
    assert full["bits"] is None and fine["way"] == coarse["way"] == "continued" and fine["cost"] is None
    assert fine["bits"] > coarse["bits"] and fine["distance"]["kl"] < coarse["distance"]["kl"]


def test_kv_eval_as_json_with_a_budget(folder, text):
    found = call("kv-eval", folder, "--text", text, "--kv-budget", 0.2, "--calibration", text, "--context", 150,
                 "--windows", 1, "--json", "-T", 1, "--no-cost")  # fmt: skip
    assert found.exit_code == 0, found.output
    full, budget = map(json.loads, found.output.splitlines())
    assert full["percent"] == 0 and full["distance"]["kl"] == 0 and full["cost"] is None
    assert 3.0 < budget["bits"] <= 3.2
    assert budget["distance"]["kl"] > 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "kv-eval needs a policy, got none: give one, such as --policy kivi:4"),
        (("--policy", "magic:4"), "policy 'magic' is unknown: choose from full, kivi, rotated, vidkv, blockfloat, "
         "transform, lowrank, archive"),
        (("--policy", "kivi:depth=4"), "policy kivi has no depth: it takes bits, group, mean, sinks, value_bits, win"),
        (("--policy", "kivi:mean=3"), "this policy needs a text to calibrate on: name one with --calibration"),
        (("--policy", "kivi:4,sinks=1.5"), "sinks cannot be 1.5"),
        (("--policy", "kivi:4+lru:9"), "'lru' after + is unknown: choose from window, snapkv, adakv, softprune, "
         "hybrid"),
        (("--policy", "kivi:4+adakv:9,floor=2"), "floor must be from 0 to 1, got 2"),
        (("--policy", "kivi:4+window:9,pool=3"), "window has no pool: it takes limit"),
        (("--policy", "no.json"), "no.json: No such file or directory"),
        (("--policy", "kivi:4", "--policy", "kivi:2", "--save-policy", "a.json"), "--save-policy takes one policy"),
        (("--policy", "kivi:many"), "bits must be a number, got 'many'"),
        (("--policy", "transform:2"), "this policy needs a text to calibrate on: name one with --calibration"),
        (("--policy", "kivi:4", "--context", "100000"), "the text has"),
        (("--policy", "kivi:2,window=8", "--context", "64"), "kivi:2,window=8 keeps 12 tokens exact and codes 64 at a "
         "time: in a context of 64 it codes nothing that is measured: use --context 78 or more, or a policy with"),
    ],
)  # fmt: skip
def test_the_command_refuses_bad_policies_and_contexts(folder, text, arguments, message):
    found = call("kv-eval", folder, "--text", text, *arguments)
    assert found.exit_code == 1
    assert found.output.splitlines()[-1].startswith(f"Error: {message}")


def test_eviction_and_bits_of_heads_by_words_and_by_file(folder, text):
    spec, path = "kivi:mean=5.5,group=16,window=16+snapkv:40,observed=8", folder.parent / "policy.json"
    found = call("kv-eval", folder, "--text", text, "--policy", spec, "--calibration", text, "--context", 200,
                 "--windows", 2, "--passkeys", 1, "--save-policy", path, "--json", "-T", 1)  # fmt: skip
    assert found.exit_code == 0, found.output
    _, full, row = map(json.loads, found.output.splitlines())
    assert full["way"] == row["way"] == "continued" and full["policy"] == "full precision"
    assert 4.5 < row["bits"] <= 5.5 and row["distance"]["kl"] > 0
    assert row["cost"]["bytes"] < 30_000
    again = call("generate", folder, "def main():" * 30, "-n", 5, "-T", 1, "--kv", path, "--json")
    assert again.exit_code == 0 and json.loads(again.output)["policy"].startswith("SnapKV(policy=KIVI(bits=(")
