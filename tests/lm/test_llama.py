"""The network: close to float32, and the same integers however tokens are fed."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from squeeze.lm import forward, models
from squeeze.lm.llama import Llama
from squeeze.lm.loading import load
from squeeze.lm.models import LoadedModel
from squeeze.numerics.frequencies import allocate, cumulative
from squeeze.numerics.jit import kernel
from squeeze.numerics.team import Team
from tests.makers import tiny_models
from tests.references.naive_llama import floats, log_probabilities, rotated

VOCABULARY = 80
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
# Sizes are odd on purpose: heads that fill no panel, pairs without a partner, sums of several chunks.
NETWORKS = {
    "llama": ("llama", {}),
    "every head its own keys": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "one head of keys": (
        "llama",
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 35, "head_dim": 6},
    ),
    "wide": ("llama", {"intermediate_size": 1100, "hidden_size": 528, "head_dim": 20, "num_hidden_layers": 1}),
    "biases": ("llama", {"attention_bias": True, "intermediate_size": 49}),
    "llama3 scaling": ("llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 64}}),
    "linear scaling": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}),
    "yarn scaling": ("llama", {"rope_parameters": YARN, "max_position_embeddings": 256}),
    "mistral": ("mistral", {"head_dim": 14, "sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 18}),
}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SQUEEZE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_models.byte_level()


def written(folder: Path, tokenizer, name: str):
    """Write a random network of transformers to a folder."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    architecture, different = NETWORKS[name]
    settings = {**tiny_models.CONFIG, "vocab_size": tokenizer.get_vocab_size(), "eos_token_id": 0, "pad_token_id": 0}
    rope = {"rope_theta": 10000.0, "rope_type": "default"} | different.get("rope_parameters", {})
    settings |= different | {"rope_parameters": rope}
    del settings["model_type"], settings["rope_theta"]
    config = transformers.AutoConfig.for_model(architecture, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            fan_in = parameter.shape[-1] if parameter.ndim == 2 else 4
            parameter.copy_(values * 1.5 / fan_in**0.5 + (parameter.ndim == 1) * (parameter != 0))
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    return model


@pytest.fixture(scope="module")
def llama(tmp_path_factory, tokenizer) -> Llama:
    folder = tmp_path_factory.mktemp("llama")
    written(folder, tokenizer, "llama")
    return LoadedModel(load(folder)).network


def random_tokens(llama: Llama, *shape: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, llama.weights.config.vocabulary, shape)


def count(session, rows: np.ndarray) -> np.ndarray:
    """Return the session's frequencies of some rows, without a bias."""
    cdf = allocate(rows.size, session.leaves)
    session.cdf(rows, np.zeros(session.leaves, np.float32), cdf, np.arange(rows.size))
    return cumulative(cdf)


def frequencies(llama: Llama, tokens: np.ndarray, window: int, chunk: int, threads: int = 1) -> np.ndarray:
    """uint64 [lanes, n, leaves + 1]: cumulative counts after each of `tokens` [lanes, n], `chunk` at a time."""
    lanes, n = tokens.shape
    team = Team(threads)
    session = llama.session(lanes, window, lanes * chunk, team)
    out = []
    for start in range(0, n, chunk):
        part = tokens[:, start : start + chunk]
        session.forward(part)
        counts = count(session, np.arange(part.size))
        out.append(counts.reshape(lanes, part.shape[1], -1).copy())
    team.close()
    return np.concatenate(out, axis=1)


def surprises(counts: np.ndarray) -> np.ndarray:
    """ln of each leaf's probability; those below 2^-30 are noise of the counts, and stand at it."""
    shares = np.diff(counts).astype(np.float64) / counts[..., -1:].astype(np.float64)
    return np.log(np.maximum(shares, 2.0**-30))


def dequantised(model, weights) -> None:
    """Give the network of transformers the weights that squeeze made of its own, rotated back."""
    import torch

    def by_head(matrix: np.ndarray, axis: int = 0) -> np.ndarray:
        heads = np.moveaxis(matrix, axis, 0).reshape(-1, c.head_size, *np.moveaxis(matrix, axis, 0).shape[1:])
        return np.moveaxis(rotated(heads, 1).reshape(np.moveaxis(matrix, axis, 0).shape), 0, axis)

    c, state = weights.config, model.state_dict()
    queries, keys = c.heads * c.head_size, c.kv_heads * c.head_size
    new = {"model.embed_tokens.weight": rotated(weights.embedding * weights.embedding_scales[:, None])}
    new |= {name: np.ones(values.shape) for name, values in state.items() if name.endswith("layernorm.weight")}
    new["model.norm.weight"] = np.ones(c.width)
    for i, layer in enumerate(weights.layers):
        at = f"model.layers.{i}."
        query, key, value = np.split(rotated(floats(layer.qkv)), [queries, queries + keys])
        parts = {"q": query, "k": key, "v": by_head(value)}
        new |= {f"{at}self_attn.{name}_proj.weight": part for name, part in parts.items()}
        gate, up = np.split(rotated(floats(layer.gate_up)), 2)
        new[at + "self_attn.o_proj.weight"] = by_head(rotated(floats(layer.output), 0), 1)
        new[at + "mlp.down_proj.weight"] = rotated(rotated(floats(layer.down), 0))
        new |= {at + "mlp.gate_proj.weight": gate, at + "mlp.up_proj.weight": up}
    head = torch.zeros(c.vocabulary, c.width)
    head[weights.leaves] = torch.from_numpy(rotated(floats(weights.head)).astype(np.float32))
    with torch.no_grad():
        for name, values in new.items():
            state[name].copy_(torch.from_numpy(values.astype(np.float32)))
    model.lm_head.weight = torch.nn.Parameter(head)


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return sum p ln(p / q) of log-probabilities [n, leaves], in nats per token."""
    return (np.exp(p) * (p - q)).sum(axis=1)


@pytest.mark.parametrize("name", NETWORKS)
def test_predictions_are_close_to_transformers(tmp_path, tokenizer, name):
    """Compare a plain network in float64 with transformers, and the integers with both.

    Eight bits cost about 0.001 nats per token in these networks, whose heads are tiny and whose weights are noise.
    Compared with the plain network rounded to 8 bits, most rows are equal; in others a number half-way between two
    steps went the other way.
    """
    import torch

    model = written(tmp_path, tokenizer, name)
    llama = LoadedModel(load(tmp_path)).network
    tokens = random_tokens(llama, 90)
    ours = surprises(frequencies(llama, tokens[None], 512, 32)[0])
    dequantised(model, llama.weights)
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens[None])).logits[0].double()
    theirs = torch.log_softmax(logits[:, torch.from_numpy(llama.leaves).long()], 1).numpy()
    exact, rounded = (log_probabilities(llama.weights, tokens, rounded=r) for r in (False, True))
    np.testing.assert_allclose(exact, theirs, atol=2e-4)
    assert divergence(theirs, ours).mean() < 5e-3
    assert_close(rounded, ours)


def assert_close(plain: np.ndarray, ours: np.ndarray) -> None:
    lost = divergence(plain, ours)
    assert lost.min() < 1e-9 and lost.mean() < 1e-3


@pytest.mark.parametrize("window", [16, 48])
def test_a_lane_sees_its_sink_and_its_window(llama, window):
    """Its first 16 positions at a fixed distance and the blocks of its window, as the plain network says."""
    tokens = random_tokens(llama, 300)
    ours = surprises(frequencies(llama, tokens[None], window, 24)[0])
    plain, all_seen = (log_probabilities(llama.weights, tokens, w) for w in (window, None))
    assert_close(plain, ours)
    assert divergence(all_seen, ours)[window + 16 :].mean() > 0.1


@pytest.mark.parametrize("window", [16, 32, 512])
@pytest.mark.parametrize(("chunk", "threads"), [(7, 1), (32, 1), (32, 2), (150, 1), (150, 3), (1, 2), (5, 3)])
def test_prefill_equals_steps(llama, window, chunk, threads):
    """Wrap the ring of 150 positions several times, in windows of 16 and 32."""
    tokens = random_tokens(llama, 1, 150)
    assert np.array_equal(
        frequencies(llama, tokens, window, chunk, threads), frequencies(llama, tokens, window, chunk=1)
    )


def test_a_window_longer_than_the_text_is_one_of_its_length(llama):
    tokens = random_tokens(llama, 2, 100)
    assert np.array_equal(frequencies(llama, tokens, 112, 9), frequencies(llama, tokens, 4096, 9))


@pytest.mark.parametrize("name", ["one head of keys", "wide", "biases", "qwen3"])
def test_prefill_equals_steps_in_every_kind_of_network(tmp_path, tokenizer, name):
    written(tmp_path, tokenizer, name)
    llama = LoadedModel(load(tmp_path)).network
    tokens = random_tokens(llama, 2, 60)
    one = frequencies(llama, tokens, 16, chunk=1)
    for chunk, threads in ((2, 2), (13, 1), (60, 2)):
        assert np.array_equal(frequencies(llama, tokens, 16, chunk, threads), one)


@pytest.mark.parametrize(
    ("lanes", "chunk", "threads"), [(2, 1, 1), (3, 8, 2), (5, 1, 2), (5, 14, 3), (9, 3, 1), (16, 1, 1)]
)
def test_lanes_do_not_disturb_each_other(llama, lanes, chunk, threads):
    tokens = random_tokens(llama, lanes, 70)
    tokens[-1] = tokens[0]
    together = frequencies(llama, tokens, 32, chunk, threads)
    for lane in {0, 1, lanes - 1}:
        assert np.array_equal(together[lane], frequencies(llama, tokens[lane : lane + 1], 32, chunk=35)[0])


@kernel
def waited_for(tasks, lanes, first):
    for rank in range(first.size):
        begin = forward._rows_of(tasks, rank, first.size)[0]
        first[rank] = forward._first_of_lane(tasks, lanes, begin, rank, first.size)


@pytest.mark.parametrize(
    ("lanes", "n", "first"),
    [
        (4, 8, [0, 1, 2, 3]),
        (4, 8, [0, 1, 1]),
        (1, 32, [0, 0, 0, 0]),
        (16, 2, [0, 1, 2]),
        (1, 4, [0, 0]),
        (3, 4, [0, 1]),
    ],
)
def test_threads_wait_for_their_own_lane_alone(lanes, n, first):
    starts = [(lane * n + row, min(4, n - row)) for lane in range(lanes) for row in range(0, n, 4)]
    found = np.zeros(len(first), np.int64)
    waited_for(np.array(starts), np.repeat(np.arange(lanes), n), found)
    assert found.tolist() == first


@pytest.mark.parametrize(
    ("lanes", "n", "threads", "apart"),
    [(16, 1, 2, False), (32, 1, 2, True), (1, 32, 2, True), (2, 31, 4, False), (8, 8, 4, True), (8, 8, 8, False)],
)
def test_threads_with_their_own_rows_give_the_same_numbers(llama, monkeypatch, lanes, n, threads, apart):
    """There are 16 rows per thread or more: a step of many lanes, or many positions of some."""
    chosen, run, tokens = [], Team.run, random_tokens(llama, lanes, 2 * n)

    def noted(team, work, apart=False):
        chosen.append(apart)
        run(team, work, apart)

    expected = frequencies(llama, tokens, 32, chunk=1)
    monkeypatch.setattr(Team, "run", noted)
    assert np.array_equal(frequencies(llama, tokens, 32, n, threads), expected)
    assert chosen == [apart] * 4


def test_lanes_may_end_early(llama):
    """Feed the first lanes of a session without the others, with prefills and steps in any order."""
    tokens = random_tokens(llama, 4, 60)
    session, at, seen = llama.session(4, 32, 28, Team(1)), 0, []
    for lanes, n in ((4, 7), (4, 1), (4, 4), (3, 5), (3, 1), (1, 7), (1, 1), (1, 2)):
        session.forward(tokens[:lanes, at : at + n])
        seen.append(count(session, np.arange(n)).copy())
        at += n
    assert session.positions.tolist() == [28, 18, 18, 12]
    assert np.array_equal(np.concatenate(seen), frequencies(llama, tokens[:1], 32, chunk=1)[0, :at])


@pytest.mark.parametrize("threads", [1, 2])
def test_lanes_may_advance_alone_and_go_back(llama, threads):
    """Each lane may be fed a number of tokens of its own, and forget those that proved wrong."""
    random, tokens = np.random.default_rng(5), random_tokens(llama, 3, 90)
    team = Team(threads)
    session = llama.session(3, 32, 3 * 9, team)
    expected, at = frequencies(llama, tokens, 32, chunk=1), np.zeros(3, int)
    while at.max() < 80:
        counts = random.integers(0, 9, 3)
        right = np.minimum(random.integers(0, 9, 3), counts)
        fed = np.stack([tokens[lane, at[lane] : at[lane] + 9] for lane in range(3)])
        wrong = np.arange(9) >= right[:, None]
        session.forward(np.where(wrong, random.integers(0, 100, (3, 9)), fed), counts)
        found = count(session, np.arange(counts.sum()))
        for lane, start in enumerate(np.cumsum(counts) - counts):
            seen = expected[lane, at[lane] : at[lane] + right[lane]]
            assert np.array_equal(found[start : start + right[lane]], seen)
        session.take_back(counts - right)
        at += right
        assert session.positions.tolist() == at.tolist()
    team.close()


def test_counts_are_cumulative_and_no_leaf_is_impossible(llama):
    counts = frequencies(llama, random_tokens(llama, 2, 20), 32, 20)
    assert (counts[..., 0] == 0).all()
    shares = np.diff(counts.astype(np.int64))
    assert shares.min() >= 1 and (shares.max(axis=2) == (1 << 40) + 1).all()


def test_rows_may_be_counted_in_any_order(llama):
    session = llama.session(1, 64, 40, Team(1))
    session.forward(random_tokens(llama, 1, 40))
    everything = count(session, np.arange(40)).copy()
    for rows in ([39], [3, 1, 2], list(range(5, 25))):
        assert np.array_equal(count(session, np.array(rows)), everything[rows])


def test_extreme_weights_are_exact_too(tmp_path, tokenizer):
    """One dimension that outweighs all others, rows of zeros, and activations at the ends of their range."""
    values = tiny_models.tensors(tokenizer.get_vocab_size())
    values["model.embed_tokens.weight"][:, 3] *= 3000
    values["model.layers.0.mlp.down_proj.weight"][5] *= 1e6
    values["model.layers.1.self_attn.v_proj.weight"][:] = 0
    values["model.layers.0.self_attn.k_proj.weight"][:] = 0
    llama = models.find(tiny_models.write_folder(tmp_path / "tiny", tokenizer, values)).network
    tokens = random_tokens(llama, 2, 50)
    one = frequencies(llama, tokens, 16, chunk=1)
    assert np.array_equal(frequencies(llama, tokens, 16, chunk=50, threads=2), one)
    assert divergence(log_probabilities(llama.weights, tokens[0], 16), surprises(one[0])).mean() < 1e-6


def test_closing_a_team_at_work_ends_all_threads(llama):
    """Neither its own threads nor the caller's wait for each other for ever."""
    for _ in range(5):
        team = Team(3)
        session = llama.session(1, 512, 64, team)
        ended = []

        def work(session=session, ended=ended) -> None:
            try:
                while True:
                    session.forward(random_tokens(llama, 1, 64))
            except RuntimeError as error:
                ended.append(str(error))

        worker = threading.Thread(target=work)
        worker.start()
        while session.positions[0] == 0:
            time.sleep(0.001)
        team.close()
        worker.join(30)
        assert ended == ["a team of threads was broken off"]
