"""Distances of outputs, compared with their definitions, and limits (output_quality.py)."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from squeeze.engine.inputs import Samples
from squeeze.engine.output_quality import OutputQuality, check_outputs
from squeeze.engine.outputs import compare_outputs, embeddings, retrieval_agreement
from squeeze.errors import ModelError, QualityError, SqueezeError


class Giving(nn.Module):
    """Return outputs that were computed before, by the number in its input."""

    config = SimpleNamespace()

    def __init__(self, **outputs: torch.Tensor) -> None:
        super().__init__()
        self.scale, self.outputs = nn.Parameter(torch.zeros(1)), outputs

    def forward(self, number):
        return {name: values[number[0]][None] for name, values in self.outputs.items()} | {"cache": None}


SAMPLES = Samples.of({"number": torch.tensor([n])} for n in range(3))
RNG = torch.Generator().manual_seed(0)


def test_distances_are_those_of_all_samples_together():
    x, noise = torch.randn(3, 5, 8, generator=RNG), 0.1 * torch.randn(3, 5, 8, generator=RNG)
    model, original = (Giving(logits=values, state=values[..., :1]) for values in (x + noise, x))
    logits, state = compare_outputs(model, original, SAMPLES)
    assert logits.name == "logits" and logits.shape == [1, 5, 8] and logits.samples == 3
    assert logits.error == pytest.approx(float(noise.norm() / x.norm()), rel=1e-5)
    assert logits.cosine == pytest.approx(float(nn.functional.cosine_similarity(x, x + noise, -1).mean()), rel=1e-5)
    kl = nn.functional.kl_div((x + noise).log_softmax(-1), x.softmax(-1), reduction="none").sum(-1).mean()
    assert logits.kl_mean == pytest.approx(float(kl), rel=1e-4)
    assert logits.top1_agreement == pytest.approx(float(((x + noise).argmax(-1) == x.argmax(-1)).float().mean()))
    peak = float(x.abs().max()) ** 2 / float(noise.square().mean())
    assert logits.psnr == pytest.approx(10 * torch.tensor(peak).log10().item(), rel=1e-5)
    assert state.kl_mean is None and state.cosine is None and state.error > 0


def test_outputs_that_are_missing_or_not_numbers_are_refused():
    x = torch.ones(3, 2)
    with pytest.raises(ModelError, match="gives no output state like that of the original"):
        compare_outputs(Giving(other=x), Giving(state=x), SAMPLES)
    with pytest.raises(ModelError, match="the original computes state that are not numbers"):
        compare_outputs(Giving(state=x), Giving(state=x * torch.nan), SAMPLES)
    with pytest.raises(ModelError, match="returns no tensor of floats, which could be compared"):
        compare_outputs(Giving(state=x.long()), Giving(state=x.long()), SAMPLES)
    with pytest.raises(ModelError, match="computes state that are not numbers"):
        compare_outputs(Giving(state=x * torch.nan), Giving(state=x), SAMPLES)


def test_embeddings_are_means_over_tokens_that_are_no_padding():
    class Encoder(Giving):
        def forward(self, input_ids, attention_mask):
            return {"last_hidden_state": torch.stack([input_ids.float(), 2 * input_ids.float()], -1)}

    batch = {"input_ids": torch.tensor([[3, 1, 50]]), "attention_mask": torch.tensor([[1, 1, 0]])}
    torch.testing.assert_close(embeddings(Encoder(), [batch]), nn.functional.normalize(torch.tensor([[2.0, 4.0]])))
    with pytest.raises(SqueezeError, match="returns no last hidden states"):
        embeddings(Giving(logits=torch.ones(1, 2)), [{"number": torch.tensor([0])}])


def test_retrieval_agrees_with_itself_and_counts_lost_neighbours():
    dense = nn.functional.normalize(torch.randn(40, 8, generator=RNG), dim=-1)
    assert retrieval_agreement(dense, dense) == 1
    other = nn.functional.normalize(dense + 0.3 * torch.randn(40, 8, generator=RNG), dim=-1)
    nearest = [set((values @ values.T - 2 * torch.eye(40)).topk(10).indices[0].tolist()) for values in (other, dense)]
    whole = retrieval_agreement(other, dense)
    assert 0.3 < whole < 1 and len(nearest[0] & nearest[1]) < 10
    assert retrieval_agreement(dense[:3], dense[:3]) == 1  # all others are neighbours
    with pytest.raises(SqueezeError, match="at least 2 passages"):
        retrieval_agreement(dense[:1], dense[:1])


def test_limits_name_the_output():
    one = OutputQuality("logits", [1, 2], 0.2, 0.99, 0.03, 1.0, 20.0, 4)
    check_outputs("model", [one], max_kl=0.03, max_error=0.2)
    with pytest.raises(QualityError, match=r"model: the relative error of logits is 0.2000, above 0.1"):
        check_outputs("model", [one], max_error=0.1)
    with pytest.raises(QualityError, match=r"mean KL divergence of logits is 0.0300, above 0.01"):
        check_outputs("model", [one], max_kl=0.01)
    assert str(one) == "error 0.2000, cosine 0.9900, KL 0.0300 nats, same class 100.0 % (4 samples)"
