"""Samples of files: texts with the tokens around them, images, sounds and arrays; and callables of the Python API."""

import json
import wave

import numpy as np
import pytest
import torch

import squeeze
from squeeze.errors import SqueezeError
from squeeze.recipes.samples import given, needed, passages, samples_of
from squeeze.system.storage import path_of
from tests.makers import zoo, zoo_others

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture
def bert(tmp_path):
    folder = zoo_others.write(tmp_path / "bert", "BertModel")
    zoo.tokenizer().save_pretrained(folder)
    return folder


def test_texts_are_cut_into_samples_of_one_length(bert, tmp_path):
    (tmp_path / "text.txt").write_text(zoo.TEXT)
    found = samples_of(bert, tmp_path / "text.txt", 4, 32, 0)
    assert [tuple(sample["input_ids"].shape) for sample in found] == [(4, 32)]
    assert [len(one["input_ids"]) for one in samples_of(bert, tmp_path / "text.txt", 34, 32, 0)] == [2] * 17
    assert len(list(passages(bert, zoo.TEXT, 32))) > 4
    (tmp_path / "short.txt").write_text("few words")
    with pytest.raises(SqueezeError, match=r"short.txt: has 0 sequences of 32 tokens, and 4 are needed"):
        samples_of(bert, tmp_path / "short.txt", 4, 32, 0)


def test_a_decoder_gets_the_same_tokens_behind_its_first(tmp_path):
    folder = zoo_others.write(tmp_path / "t5", "T5ForConditionalGeneration")
    zoo.tokenizer().save_pretrained(folder)
    (tmp_path / "text.txt").write_text(zoo.TEXT)
    (sample,) = samples_of(folder, tmp_path / "text.txt", 1, 16, 0)
    assert torch.equal(sample["decoder_input_ids"][:, 1:], sample["input_ids"][:, :-1])


def test_arrays_are_samples_along_their_first_axis(bert, tmp_path):
    ids = np.random.default_rng(0).integers(5, 390, (6, 16))
    np.savez(tmp_path / "ids.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    found = samples_of(bert, tmp_path / "ids.npz", 4, 32, 0)
    assert len(found) == 4 and torch.equal(found.samples[3]["input_ids"], torch.from_numpy(ids[3:4]))
    np.savez(tmp_path / "apart.npz", input_ids=ids, attention_mask=ids[:2])
    with pytest.raises(SqueezeError, match="expected arrays with the same first axis"):
        samples_of(bert, tmp_path / "apart.npz", 4, 32, 0)
    (tmp_path / "broken.npz").write_bytes(b"PK no zip")
    with pytest.raises(SqueezeError, match="not a file of numpy's arrays"):
        samples_of(bert, tmp_path / "broken.npz", 4, 32, 0)
    one_by_one = tmp_path / "one by one"
    one_by_one.mkdir()
    for number in range(3):
        np.savez(one_by_one / f"{number}.npz", input_ids=ids[number : number + 1])
    (one_by_one / "LICENSE").write_text("of the arrays")
    assert len(samples_of(bert, one_by_one, 8, 32, 0)) == 3


def test_images_are_prepared_by_the_model_s_own_processor(tmp_path):
    image = pytest.importorskip("PIL.Image")
    folder, pictures = zoo_others.write(tmp_path / "vit", "ViTForImageClassification"), tmp_path / "pictures"
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    pictures.mkdir()
    for number in range(3):
        values = np.random.default_rng(number).integers(0, 255, (40 + number, 50, 3), np.uint8)
        image.fromarray(values).save(pictures / f"{number}.png")
    found = samples_of(folder, pictures, 2, 32, 0)
    assert len(found) == 2 and found.samples[0]["pixel_values"].shape == (1, 3, 32, 32)
    report = squeeze.quantize(folder, out=tmp_path / "out", bits=4, group_size=32, calibration=pictures, samples=3)
    assert len(report.layers) == 12 and report.layers[0].tokens == 3 * 17


def test_sounds_are_prepared_by_the_model_s_own_extractor(tmp_path):
    folder = zoo_others.write(tmp_path / "hubert", "HubertModel")
    settings = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 1000, "feature_size": 1}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    values = (20000 * np.sin(np.arange(26000) / 7)).astype("<i2")
    for name, rate in (("good", 1000), ("fast", 2000)):
        with wave.open(str(tmp_path / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(values.tobytes())
    found = samples_of(folder, tmp_path / "good.wav", 8, 32, 0)
    assert len(found) == 3 and found.samples[0]["input_values"].shape == (1, 10000)
    with pytest.raises(SqueezeError, match=r"fast.wav: the model takes 1000 samples a second, got 2000"):
        samples_of(folder, tmp_path / "fast.wav", 8, 32, 0)
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    with pytest.raises(SqueezeError, match=r"broken.wav: not a WAV file"):
        samples_of(folder, tmp_path / "broken.wav", 8, 32, 0)


def test_without_inputs_the_model_s_needs_are_named(bert, tmp_path):
    vit = zoo_others.write(tmp_path / "vit", "ViTForImageClassification")
    assert "BertModel does not write text to calibrate with: give `calibration` a text file" in str(needed(bert))
    with pytest.raises(SqueezeError, match=r"ViTForImageClassification does not write text.*a folder of images or WAV"):
        squeeze.quantize(vit, out=tmp_path / "out")
    (tmp_path / "text.txt").write_text(zoo.TEXT)
    with pytest.raises(SqueezeError, match="ViTForImageClassification reads no text: give `calibration` a folder of"):
        samples_of(vit, tmp_path / "text.txt", 4, 32, 0)
    with pytest.raises(SqueezeError, match=r"holds no images, WAV files or .npz files"):
        samples_of(vit, tmp_path, 4, 32, 0)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "a.png").write_bytes(b"")
    with pytest.raises(SqueezeError, match="has no processor that transformers can load"):
        samples_of(vit, pictures, 4, 32, 0)


def test_a_url_is_named_and_refused():
    with pytest.raises(SqueezeError, match=r"'fake://bucket/text\.txt' is a URL, and this takes a path"):
        given(path_of("fake://bucket/text.txt"), 1)


def test_callables_and_iterables_give_samples():
    whole = zoo_others.samples("BertModel", 5)
    assert len(given(lambda: iter(whole.samples), 3)) == 3 == len(given(list(whole.samples), 3))
    assert given("text.txt", 3) == "text.txt" and given(whole, 3) is whole
    with pytest.raises(SqueezeError, match="as dicts of tensors, got a int"):
        given(5, 3)
    with pytest.raises(SqueezeError, match="as dicts of tensors, got a list"):
        given([[1]], 3)
