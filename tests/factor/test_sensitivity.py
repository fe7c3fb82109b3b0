"""The sensitivity predictor: what it is told, what it measures, and that training orders what it has not seen."""

import pytest
import torch

from squeeze.errors import ModelError, SqueezeError
from squeeze.factor import sensitivity
from squeeze.factor.sensitivity import FEATURES, GRID, Example, Predictor, spearman
from tests.makers import networks

pytest.importorskip("transformers", reason="transformers is not installed")


def test_measured_damage_is_that_of_the_whole_model():
    network = networks.peaked_llama(3).requires_grad_(False)
    tokens = torch.randint(0, 64, (2, 24), generator=torch.Generator().manual_seed(1))
    names = networks.linear_names(network)
    moments = sensitivity.input_moments(network, tokens, names)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    found = sensitivity.measure(network, tokens, names, moments, keep=0.5)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    name = "model.layers.1.mlp.up_proj"
    wanted = network(tokens).logits.log_softmax(-1)
    weight = network.get_submodule(name).weight
    method = sensitivity.WhitenedSVD(keep=0.5)
    weight.data.copy_(method.compress(weight.detach(), moments[name]).tensor.dequantize())
    changed = network(tokens).logits.log_softmax(-1)
    expected = float((wanted.exp() * (wanted - changed)).sum(-1).mean())
    assert found[name] == pytest.approx(expected, rel=1e-4)
    given = sensitivity.examples(network, names, moments)
    assert given[0].features.shape == (FEATURES, GRID, GRID) and given[-1].layer == 2
    assert all(one.features.isfinite().all() for one in given)
    assert 0 < sensitivity.spectral(weight, 0.5) < 1


def made_up(count, seed):
    """Matrices whose damage lies in one quarter of their patches, and grows with two features of it."""
    generator = torch.Generator().manual_seed(seed)
    features = 0.3 * torch.randn((count, FEATURES, GRID, GRID), generator=generator)
    features[:, :4] += torch.randn((count, 4, 1, 1), generator=generator)
    features[:, 4, : GRID // 2, : GRID // 2] += 2
    damage = (features[:, 0] + 0.7 * features[:, 3] + 2 * features[:, 4]).exp().sum((1, 2))
    return [Example(str(i), i, features[i], float(damage[i])) for i in range(count)]


def test_training_orders_what_it_has_not_seen(tmp_path):
    trained = sensitivity.train(made_up(60, 1), steps=60, rate=1e-2)
    unseen = made_up(30, 2)
    found = trained.predict(unseen)
    assert spearman(list(found.values()), [one.damage for one in unseen]) > 0.8
    with torch.no_grad():
        patches = trained(torch.stack([one.features for one in unseen])).exp().mean(0)
    assert patches[: GRID // 2, : GRID // 2].mean() > 2 * patches[GRID // 2 :].mean()
    trained.save(tmp_path / "weights.safetensors")
    again = Predictor.load(tmp_path / "weights.safetensors")
    assert again.predict(unseen) == found


def test_other_models_teach_their_order_on_whatever_scale():
    from dataclasses import replace

    others = [replace(one, damage=1e5 * one.damage, model="another") for one in made_up(60, 1)]
    trained = sensitivity.train([*made_up(4, 5), *others], steps=60, rate=1e-2)
    unseen = made_up(30, 2)
    found = list(trained.predict(unseen).values())
    assert spearman(found, [one.damage for one in unseen]) > 0.8
    assert 0.1 < sum(found) / sum(one.damage for one in unseen) < 10


def test_the_weights_that_ship_order_matrices():
    found = Predictor.load().predict(made_up(5, 3))
    assert len(found) == 5 and all(value > 0 for value in found.values())


def test_other_files_and_single_examples_are_refused(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="not a sensitivity predictor"):
        Predictor.load(tmp_path / "x.safetensors")
    with pytest.raises(SqueezeError, match="at least two"):
        sensitivity.train(made_up(1, 1))


def test_spearman_is_one_for_the_same_order():
    assert spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
