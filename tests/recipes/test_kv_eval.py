"""`squeeze kv-eval` and `squeeze generate`: their words, their errors, and what they measure."""

import json

import pytest
import torch
from click.testing import CliRunner

from squeeze.cli import main
from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache
from squeeze.kv.layer import PackedLayer
from squeeze.kv.measure import passkeys, quality, stepped
from squeeze.kv.memory import PeakMemory, nbytes_of
from squeeze.kv.teacher import teacher_forced
from tests.makers import tiny_models
from tests.makers.kv_models import MODELS, llama, tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = tiny_models.byte_level()
    path = tmp_path_factory.mktemp("kv") / "model"
    return tiny_models.write_folder(path, tokenizer, vocab_size=tokenizer.get_vocab_size(), eos_token_id=None)


@pytest.fixture(scope="module")
def text(folder):
    path = folder.parent / "text.txt"
    path.write_bytes(tiny_models.TRAINING_TEXT[:6000])
    return path


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_kv_eval_as_a_table(folder, text):
    found = run("kv-eval", folder, "--text", text, "--policy", "kivi:8,group=16", "--policy", "rotated:2", "--context",
                200, "--windows", 2, "--passkeys", 1, "-T", 1)  # fmt: skip
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[0].split() == ["policy", "context", "bits", "perplexity", "%", "KL", "cache", "bytes", "peak", "bytes",
                                "ms/token", "passkeys"]  # fmt: skip
    assert [line.split()[0] for line in lines[1:]] == ["full", "kivi:8,group=16", "rotated:2"]


def test_kv_eval_as_json_with_a_budget(folder, text):
    found = run("kv-eval", folder, "--text", text, "--kv-budget", 0.2, "--calibrate", text, "--context", 150,
                "--windows", 1, "--json", "-T", 1, "--no-cost")  # fmt: skip
    assert found.exit_code == 0, found.output
    full, budget = map(json.loads, found.output.splitlines())
    assert full["percent"] == 0 and full["distance"]["kl"] == 0 and full["cost"] is None
    assert 3.0 < budget["bits"] <= 3.2
    assert budget["distance"]["kl"] > 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "name a policy to measure, such as --policy kivi:4"),
        (("--policy", "magic:4"), "no policy is named 'magic': choose from full, kivi, rotated, vidkv, blockfloat, "
         "transform, lowrank"),
        (("--policy", "kivi:depth=4"), "policy kivi has no depth: it takes bits, group, mean, sinks, value_bits, win"),
        (("--policy", "kivi:mean=3"), "this policy needs a text to calibrate on: name one with --calibrate"),
        (("--policy", "kivi:4,sinks=1.5"), "sinks cannot be 1.5"),
        (("--policy", "kivi:4+lru:9"), "no eviction is named 'lru': choose from window, snapkv, softprune"),
        (("--policy", "kivi:4+window:9,pool=3"), "eviction window has no pool: it takes limit"),
        (("--policy", "no.json"), "no.json: No such file or directory"),
        (("--policy", "kivi:4", "--policy", "kivi:2", "--save-policy", "a.json"), "--save-policy takes one policy"),
        (("--policy", "kivi:many"), "bits is a number, and 'many' is none"),
        (("--policy", "transform:2"), "this policy needs a text to calibrate on: name one with --calibrate"),
        (("--policy", "kivi:4", "--context", "100000"), "the text has"),
    ],
)  # fmt: skip
def test_kv_eval_errors(folder, text, arguments, message):
    found = run("kv-eval", folder, "--text", text, *arguments)
    assert found.exit_code == 1
    assert found.output.splitlines()[-1].startswith(f"Error: {message}")


def test_eviction_and_bits_of_heads_by_words_and_by_file(folder, text):
    spec, path = "kivi:mean=5.5,group=16,window=16+snapkv:40,observed=8", folder.parent / "policy.json"
    found = run("kv-eval", folder, "--text", text, "--policy", spec, "--calibrate", text, "--context", 200, "--windows",
                2, "--passkeys", 1, "--save-policy", path, "--json", "-T", 1)  # fmt: skip
    assert found.exit_code == 0, found.output
    _, full, row = map(json.loads, found.output.splitlines())
    assert full["way"] == row["way"] == "continued" and full["policy"] == "full precision"
    assert 4.5 < row["bits"] <= 5.5 and row["distance"]["kl"] > 0
    assert row["cost"]["bytes"] < 30_000
    again = run("generate", folder, "def main():" * 30, "-n", 5, "-T", 1, "--kv", path, "--json")
    assert again.exit_code == 0 and json.loads(again.output)["policy"].startswith("SnapKV(policy=KIVI(bits=(")


def test_generate_streams_and_says_what_memory_it_took(folder):
    plain = run("generate", folder, "def main():", "-n", 90, "-T", 1, "--json")
    coded = run("generate", folder, "def main():", "-n", 90, "-T", 1, "--kv", "kivi:8,group=8,window=16")
    assert plain.exit_code == coded.exit_code == 0, coded.output
    assert json.loads(plain.output)["tokens"] == 90
    assert "KV cache" in coded.output.splitlines()[-1] and "torch" not in coded.output
    assert f"90 tokens after {json.loads(plain.output)['prompt_tokens']}" in coded.output


def test_a_draft_changes_nothing_but_the_time(folder, tmp_path):
    import squeeze

    squeeze.factorize(folder, "svd", keep=0.9, out=tmp_path / "draft")
    plain = run("generate", folder, "def main():", "-n", 40, "-T", 1, "--json")
    helped = run("generate", folder, "def main():", "-n", 40, "-T", 1, "--json", "--draft", tmp_path / "draft")
    assert helped.exit_code == 0, helped.output
    ours, theirs = json.loads(helped.output), json.loads(plain.output)
    assert ours["text"] == theirs["text"] and ours["tokens"] == theirs["tokens"] == 40
    assert 0 < ours["accepted"] <= ours["proposed"]
    said = run("generate", folder, "def main():", "-n", 5, "--draft", tmp_path / "draft")
    assert said.output.splitlines()[-1].endswith("% were accepted")
    sampled = run("generate", folder, "a", "--temperature", "1", "--draft", tmp_path / "draft")
    assert sampled.exit_code == 1 and "a draft is for greedy decoding" in sampled.output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("", "--kv", "4"), "the prompt is empty: give at least one token to go on from"),
        (("a", "-n", "600"), "do not fit the model's 512"),
        (("a", "--kv", "4", "--kv-budget", "0.2"), "--kv and --kv-budget say two things: give one of them"),
        (("a", "--kv", "4", "--draft", "x"), "a draft needs transformers' own cache: use either --draft or --kv"),
        (("a", "--kv", "5"), "5 bits are not offered here: choose from 1, 2, 3, 4, 8"),
    ],
)
def test_generate_errors(folder, arguments, message):
    found = run("generate", folder, *arguments)
    assert found.exit_code == 1
    assert found.output.splitlines()[-1].endswith(message)


@pytest.mark.parametrize("name", list(MODELS))
def test_one_pass_equals_decoding_with_the_window_exact(name):
    """A window of nothing and blocks that end where the pass ends: what a cache gives at the last token."""
    model, ids = MODELS[name](), tokens(length=22)
    policy = KIVI(bits=4, group=8, sinks=4, window=1)
    if name in ("mistral", "qwen2"):
        policy = KIVI(bits=4, group=8, sinks=0, window=1)  # sliding windows have no sinks
    with torch.no_grad():
        with teacher_forced(model, FullPrecision()):
            torch.testing.assert_close(model(ids, use_cache=False).logits, model(ids).logits)
        with teacher_forced(model, policy):
            coded = model(ids, use_cache=False).logits
    assert not torch.allclose(coded, model(ids).logits, atol=1e-3)


def test_quality_and_stepped_agree_on_full_precision():
    model, text = llama(), tokens(length=128)[0]
    found = quality(model, text, {"full": FullPrecision(), "kivi": KIVI(bits=8, window=0, group=16)}, 64, 2)
    assert found["full"].perplexity == pytest.approx(found["full precision"].perplexity, rel=1e-6)
    assert 0 < found["kivi"].kl < 0.01
    logits = []
    steps = [stepped(model, text, lambda: QuantizedKVCache(model.config, FullPrecision()), 64, 2, logits) for _ in "ab"]
    assert steps[0] == steps[1] and len(logits) == 2
    assert steps[0].perplexity == pytest.approx(found["full"].perplexity, rel=1e-4)


def test_peak_memory_counts_tensors():
    with PeakMemory() as memory:
        a = torch.zeros(1000)
        b = a + 1
        b.view(10, 100).add_(1)
        del a
        c = torch.zeros(1000)
        del b, c
        torch.zeros(10)
    assert memory.peak == 8000 and memory.now == 0
    held = [torch.zeros(1000)]
    with PeakMemory(iter(held)) as memory:
        held[0] = torch.cat([held[0], torch.zeros(10)])  # old and new at once, then only the new
        held[0] = torch.cat([held[0], torch.zeros(10)])
    assert memory.peak == 4040 + 4080 + 40


def test_bytes_are_within_the_bound():
    """At 8,192 tokens, growth, sinks and window included, 1.15 times nominal."""
    for policy in (KIVI(4), KIVI(2), KIVI(8)):
        layer = PackedLayer(policy, 0)
        for _ in range(16):
            layer.update(*torch.randn(2, 1, 2, 512, 64, dtype=torch.bfloat16))
        (group,) = layer.head_groups
        nominal = (group.keys.bits(64, 64) + group.values.bits(64, 64)) / 2
        assert layer.nbytes * 8 <= 1.15 * nominal * 8192 * 2 * 2 * 64
        assert layer.nbytes == nbytes_of(type("Cache", (), {"layers": [layer], "nbytes": layer.nbytes}))


def test_passkeys_are_looked_for():
    class Tokenizer:
        def __call__(self, words, **options):
            ids = [2 + ord(letter) % 50 for letter in words]
            return {"input_ids": torch.tensor([ids]) if options.get("return_tensors") else ids}

        def decode(self, ids):
            return "".join(map(str, ids))

    model = llama()
    found = passkeys(model, Tokenizer(), lambda: QuantizedKVCache(model.config, KIVI(4, group=8)), 300, (0.1, 0.9))
    assert found == [False, False]
