"""Calibration samples of models that are no causal language models: texts, images, sounds and arrays, by the processor
in a model's folder.

Samples of one set have the same shape, since a plan of a walk over blocks is of a shape.
"""

import wave
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from squeeze.checkpoint.pretrained import SAFE, class_of, explained, load_config, load_tokenizer, quiet
from squeeze.checkpoint.text import read_text
from squeeze.engine.inputs import IDS, Samples, parameters_of
from squeeze.errors import SqueezeError, printable
from squeeze.system.storage import local_path, remote

__all__ = ["given", "needed", "passages", "reads_text", "samples_of", "texts_of"]

_IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_PROMPT = "Describe the image."
_TOKENS = 512  # of texts in one sample
_SECONDS = 10  # of a sample of sound


def given(calibration: Any, samples: int) -> Any:
    """Return a callable's or an iterable's dicts of tensors as Samples, at most `samples`; others unchanged."""
    if isinstance(calibration, str | Path | torch.Tensor | Samples) or calibration is None:
        return calibration
    if remote(calibration):
        return local_path(calibration)  # which names the URL, and refuses it
    found = calibration() if callable(calibration) else calibration
    if not isinstance(found, Iterable):
        raise SqueezeError(f"expected calibration inputs as dicts of tensors, got a {type(found).__name__}")
    return Samples.of(_named(one) for one in islice(found, samples))


def _named(sample: Any) -> Mapping[str, Any]:
    if not isinstance(sample, Mapping):
        raise SqueezeError(f"expected calibration inputs as dicts of tensors, got a {type(sample).__name__}")
    return sample


def samples_of(folder: Path, source: Path, samples: int, length: int, seed: int) -> Samples:
    """Return at most `samples` samples of a file or folder, for the model in `folder`.

    Args:
        folder: Folder of the model, with its tokenizer or processor.
        source: A text file; an `.npz` file of arrays by the names of the forward's arguments, whose first axis is that
            of samples; or a folder of images, of WAV files or of `.npz` files of one sample each.
        samples: Number of samples.
        length: Tokens of a text sample.
        seed: Seed of the choice of samples.

    Raises:
        SqueezeError: The source holds nothing that the model takes.
    """
    rng = np.random.default_rng(seed)
    if source.suffix == ".npz":
        return Samples.of(islice(_arrays(source), samples))
    if source.is_dir():
        return _of_folder(folder, source, samples, length, rng)
    if source.suffix == ".wav":
        return _spoken(folder, _sounds(folder, [source], samples, rng), length)
    if IDS not in _parameters(folder):
        raise SqueezeError(f"{source}: {_kind(folder).__name__} reads no text: {_WHAT}")
    return texts_of(folder, read_text(source), str(source), samples, length, seed)


def texts_of(folder: Path, text: str, name: str, samples: int, length: int, seed: int) -> Samples:
    """Return samples of a text, for the model in `folder`; `name` is what messages call the text."""
    rng = np.random.default_rng(seed)
    return Samples.of(_together(list(_texts(folder, text, name, samples, length, rng))))


def reads_text(folder: Path) -> bool:
    """Return whether tokens are the main input of the model in `folder`."""
    return bool(getattr(_kind(folder), "main_input_name", None) == IDS)


_WHAT = "give `calibration` a folder of images or WAV files, or an .npz file of its forward's arguments"


def needed(folder: Path) -> SqueezeError:
    """Return the error for a model that cannot write its own calibration text."""
    what = "give `calibration` a text file" if reads_text(folder) else _WHAT
    return SqueezeError(f"{folder}: {_kind(folder).__name__} does not write text to calibrate with: {what}")


def _kind(folder: Path) -> Any:
    return class_of(load_config(folder))


def _parameters(folder: Path) -> Mapping[str, Any]:
    return parameters_of(_kind(folder))


def _arrays(path: Path) -> Iterator[dict[str, torch.Tensor]]:
    """Yield samples of an .npz file: the parts of its arrays along their first axis."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError) as error:
        raise SqueezeError(f"{path}: not a file of numpy's arrays: {printable(error)}") from None
    counts = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1 or 0 in counts:
        raise SqueezeError(f"{path}: expected arrays with the same first axis, that of samples")
    for number in range(counts.pop()):
        yield {name: torch.from_numpy(array[number : number + 1].copy()) for name, array in arrays.items()}


def _whole(path: Path) -> dict[str, torch.Tensor]:
    """Return the arrays of an .npz file as one sample."""
    with np.load(path, allow_pickle=False) as file:
        return {name: torch.from_numpy(np.asarray(file[name]).copy()) for name in file.files}


def _of_folder(folder: Path, source: Path, samples: int, length: int, rng: np.random.Generator) -> Samples:
    files = sorted(path for path in source.iterdir() if path.is_file())
    by_kind = {
        kind: [path for path in files if path.suffix.lower() in kind] for kind in (_IMAGES, (".wav",), (".npz",))
    }
    if images := by_kind[_IMAGES]:
        return Samples.of(_seen(folder, _chosen(images, samples, rng)))
    if sounds := by_kind[(".wav",)]:
        return _spoken(folder, _sounds(folder, sounds, samples, rng), length)
    if arrays := by_kind[(".npz",)]:
        return Samples.of(_whole(path) for path in _chosen(arrays, samples, rng))
    raise SqueezeError(f"{source}: holds no images, WAV files or .npz files")


def _chosen(files: list[Path], samples: int, rng: np.random.Generator) -> list[Path]:
    """Return at most `samples` of the files, in their order."""
    numbers = sorted(rng.permutation(len(files))[:samples])
    return [files[number] for number in numbers]


def passages(folder: Path, text: str, length: int) -> Iterator[torch.Tensor]:
    """Yield the sequences of a text [1, length], each with the tokens that the tokenizer puts around a text."""
    tokenizer = load_tokenizer(folder)
    with explained(folder):
        before, after = _around(tokenizer)
        ids = tokenizer(text, add_special_tokens=False, verbose=False)[IDS]
    inner = length - len(before) - len(after)
    if inner < 1:
        raise SqueezeError(f"expected sequences of more than {len(before) + len(after)} tokens, got {length}")
    for first in range(0, len(ids) - inner + 1, inner):
        yield torch.tensor([[*before, *ids[first : first + inner], *after]])


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after a text."""
    inner, whole = (tokenizer("a", add_special_tokens=added)[IDS] for added in (False, True))
    start = next((n for n in range(len(whole)) if whole[n : n + len(inner)] == inner), 0)
    return list(whole[:start]), list(whole[start + len(inner) :])


def _texts(
    folder: Path, text: str, name: str, samples: int, length: int, rng: np.random.Generator
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield tokens of a text, and for a decoder the same tokens behind its first one."""
    config, known = load_config(folder), _parameters(folder)
    longest = getattr(config, "max_position_embeddings", None) or length
    found = list(passages(folder, text, min(length, longest)))
    if len(found) < samples:
        raise SqueezeError(
            f"{name}: has {len(found)} sequences of {length} tokens, and {samples} are needed: "
            "name a longer text, or choose fewer or shorter samples"
        )
    for number in sorted(rng.permutation(len(found))[:samples]):
        ids = found[number]
        sample = {IDS: ids}
        if "decoder_input_ids" in known:
            first = getattr(config, "decoder_start_token_id", None)
            sample["decoder_input_ids"] = torch.cat([torch.tensor([[first or 0]]), ids[:, :-1]], 1)
        yield sample


def _together(texts: list[dict[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield several short texts as one sample, which takes less time; all samples have as many."""
    most = max(1, _TOKENS // texts[0][IDS].shape[1])
    size = next(size for size in range(most, 0, -1) if len(texts) % size == 0)
    for first in range(0, len(texts), size):
        some = texts[first : first + size]
        yield {name: torch.cat([one[name] for one in some]) for name in some[0]}


def _processor(folder: Path) -> Any:
    quiet()
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor

    kinds: tuple[Any, ...] = AutoProcessor, AutoImageProcessor, AutoFeatureExtractor
    for number, processor in enumerate(kinds):
        try:
            return processor.from_pretrained(folder, **SAFE)
        except Exception as error:
            if number + 1 == len(kinds):
                raise SqueezeError(f"{folder}: has no processor that transformers can load: {_WHAT}") from error


def _seen(folder: Path, files: list[Path]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield images as a model's processor prepares them, with the text of the file NAME.txt next to NAME.png."""
    try:
        from PIL import Image
    except ImportError:
        raise SqueezeError("images are read by the package pillow: pip install pillow") from None
    processor, known = _processor(folder), _parameters(folder)
    for path in files:
        beside = path.with_suffix(".txt")
        text = beside.read_text("utf-8").strip() if beside.is_file() else _PROMPT
        with explained(path), Image.open(path) as image:
            pixels = image.convert("RGB")
            if IDS in known and hasattr(processor, "tokenizer"):
                found = processor(images=[pixels], text=[_with_image(processor, text)], **_PADDED, return_tensors="pt")
            else:
                found = processor(images=[pixels], return_tensors="pt")
        yield {name: value for name, value in found.items() if name in known}


_PADDED = {"padding": "max_length", "max_length": 64, "truncation": False}


def _with_image(processor: Any, text: str) -> str:
    """Return a prompt with the place of an image, as the processor's chat template or token says."""
    if getattr(processor, "chat_template", None):
        content = [{"type": "image"}, {"type": "text", "text": text}]
        prompt: str = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        return prompt
    token = getattr(processor, "image_token", None)
    return f"{token}{text}" if token else text


def _sounds(folder: Path, files: list[Path], samples: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Yield stretches of WAV files as a model's feature extractor prepares them."""
    processor, known = _processor(folder), _parameters(folder)
    extractor = getattr(processor, "feature_extractor", processor)
    rate = extractor.sampling_rate
    stretches = []
    for path in files:
        waves = _read_wave(path, rate)
        step = _SECONDS * rate
        stretches += [waves[first : first + step] for first in range(0, max(len(waves) - step // 2, 1), step)]
    for number in sorted(rng.permutation(len(stretches))[:samples]):
        whole = np.zeros(_SECONDS * rate, np.float32)
        whole[: len(stretches[number])] = stretches[number]
        with explained(folder):
            found = extractor(whole, sampling_rate=rate, return_tensors="pt")
        yield {name: value for name, value in found.items() if name in known and name != "attention_mask"}


def _read_wave(path: Path, rate: int) -> np.ndarray:
    """Return the samples of a WAV file of 16 bits, its channels averaged, float32 from -1 to 1."""
    try:
        with wave.open(str(path)) as file:
            if file.getsampwidth() != 2:
                raise SqueezeError(f"{path}: expected samples of 16 bits, got {8 * file.getsampwidth()}")
            if file.getframerate() != rate:
                raise SqueezeError(f"{path}: the model takes {rate} samples a second, got {file.getframerate()}")
            values = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            averaged: np.ndarray = values.reshape(-1, file.getnchannels()).mean(1).astype(np.float32) / 32768
            return averaged
    except (wave.Error, EOFError, OSError, ValueError) as error:
        raise SqueezeError(f"{path}: not a WAV file that can be read: {printable(error)}") from None


def _spoken(folder: Path, sounds: Iterable[dict[str, Any]], length: int) -> Samples:
    """Return samples of sound, with what the model itself writes of them if it has a decoder."""
    found = list(sounds)
    if "decoder_input_ids" not in _parameters(folder):
        return Samples.of(found)
    from squeeze.integrations.load_model import load_model

    model: Any = load_model(folder)
    first = model.config.decoder_start_token_id
    size = min(length, 64, getattr(model.config, "max_target_positions", 64))
    for sample in found:
        ids = torch.tensor([[first]])
        with torch.inference_mode(), explained(folder):
            for _ in range(size - 1):
                logits = model(**sample, decoder_input_ids=ids).logits[:, -1]
                ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        sample["decoder_input_ids"] = ids
    return Samples.of(found)
