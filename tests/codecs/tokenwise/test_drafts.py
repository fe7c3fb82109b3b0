"""Guesses save time and never change the decoded bytes."""

import pytest

from squeeze.codecs.tokenwise import lanes
from squeeze.lm import models
from squeeze.lm.llama import LlamaLanes
from tests.makers import inputs
from tests.makers.cases import all_slow_but
from tests.makers.tokenwise import TEXT, preset


@pytest.mark.parametrize(("count", "threads"), all_slow_but([(1, 2), (3, 3)], [(1, 2), (3, 1), (3, 3), (9, 2)]))
def test_no_guess_changes_what_is_decoded(folder, count, threads):
    """Right ones only save time."""
    model = models.find(folder).network
    repeated = TEXT[:200] + TEXT[:180] + TEXT[80:250]
    chosen = preset(len(repeated), count, 32)
    layout, payload = lanes.encode(repeated, model, chosen)
    other = b"".join(bytes([byte ^ (i % 7 == 0)]) for i, byte in enumerate(repeated))
    guesses = (None, repeated, other, repeated[::-1], repeated[:50], b"", inputs.random_bytes(999), repeated * 2)
    for guessed in guesses:
        found = lanes.decode(payload, layout, model, chosen, threads, guessed=guessed)
        assert found.tobytes() == repeated


def test_right_guesses_save_calls_of_the_model(folder, monkeypatch):
    model, fed = models.find(folder).network, []
    right = LlamaLanes.forward

    def forward(self, tokens, counts=None):
        fed.append(tokens.shape if counts is None else int(counts.sum()))
        right(self, tokens, counts)

    monkeypatch.setattr(LlamaLanes, "forward", forward)
    data = TEXT[:1000] * 3
    monkeypatch.setattr(lanes, "_MOST_FED", 0)  # all go through the model
    chosen = preset(len(data), 1, 32)
    layout, payload = lanes.encode(data, model, chosen)
    steps = {}
    for name, guessed in (("by matches", None), ("right", data), ("wrong", b"\n" * 3000)):
        fed.clear()
        lanes.decode(payload, layout, model, chosen, guessed=guessed)
        steps[name] = len(fed)
        assert name != "right" or sum(fed) == layout.entries
    assert steps["right"] < 0.03 * layout.entries and steps["by matches"] < 0.6 * layout.entries
    assert steps["wrong"] >= 0.9 * layout.entries
