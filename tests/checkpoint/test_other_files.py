"""Test what follows a folder that is made of another: everything but the weights, and what stays behind is named."""

import json

import pytest

import squeeze
from squeeze.checkpoint.other_files import copy_other_files, copy_tokenizer, left_out
from tests.makers.command import call
from tests.makers.hf_models import tiny_model

ALONG = (
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "additional_chat_templates/tool_use.jinja",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "3_Dense/config.json",
    "3_Dense/pytorch_model.bin",
    "modeling_own.py",
    "original/params.json",
    "training_args.bin",
    "deep/er/notes.txt",
)
PLACES = {name: f"adapter/{name}" if name.startswith("adapter") else name for name in ALONG}
BEHIND = {
    "a hidden folder": (".cache/",),
    "a state of training": ("checkpoint-500/", "optimizer.pt", "rng_state_0.pth"),
    "weights in another file, which are the original's": (
        *("model.gguf", "onnx/model.onnx", "original/consolidated.00.pth", "pytorch_model.bin"),
        *("pytorch_model.bin.index.json", "tf_model.h5"),
    ),
}


@pytest.fixture
def folder(tmp_path):
    source = tiny_model(tmp_path / "model")
    inside = {".cache/": ".cache/huggingface/x", "checkpoint-500/": "checkpoint-500/model.safetensors"}
    for name in (*ALONG, *(inside.get(name, name) for names in BEHIND.values() for name in names)):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    return source


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_every_other_file_goes_along_and_what_does_not_is_named(folder, tmp_path):
    (tmp_path / "out").mkdir()
    notes = copy_other_files(folder, tmp_path / "out")
    assert files_of(tmp_path / "out") == {*PLACES.values(), "config.json", "generation_config.json"}
    assert all((tmp_path / "out" / place).read_text() == name for name, place in PLACES.items())
    listed = {reason: names[:3] for reason, names in BEHIND.items()}
    more = {reason: f" and {len(names) - 3} more" * (len(names) > 3) for reason, names in BEHIND.items()}
    wanted = {f"left out: {', '.join(names)}{more[reason]}: {reason}" for reason, names in listed.items()}
    assert set(notes[:-1]) == wanted and notes[:-1] == left_out(folder)
    adapter = "adapter_config.json, adapter_model.safetensors"
    assert notes[-1] == f"kept in adapter/, not merged: {adapter}: a LoRA adapter of the original"


def test_an_adapter_gets_a_folder_of_its_own_if_the_source_has_one_of_that_name(folder, tmp_path):
    for name in ("adapter", "adapter-2"):
        (folder / name).mkdir()
        (folder / name / "adapter_config.json").write_text(name)
    (tmp_path / "out").mkdir()
    assert copy_other_files(folder, tmp_path / "out")[-1].startswith("kept in adapter-3/, not merged: ")
    found = {name: (tmp_path / "out" / name / "adapter_config.json").read_text() for name in ("adapter", "adapter-2")}
    assert found == {"adapter": "adapter", "adapter-2": "adapter-2"}
    assert (tmp_path / "out" / "adapter-3" / "adapter_config.json").read_text() == "adapter_config.json"
    assert not (tmp_path / "out" / "adapter" / "adapter_model.safetensors").exists()


def test_a_tokenizer_is_replaced_as_a_whole(tmp_path):
    base = {"tokenizer.json", "vocab.json", "merges.txt", "special_tokens_map.json", "chat_template.jinja", "notes.txt"}
    write(tmp_path / "out", base)
    write(
        tmp_path / "one", {"tokenizer.json", "tokenizer_config.json", "additional_chat_templates/tool.jinja", "x.txt"}
    )
    copy_tokenizer(tmp_path / "one", tmp_path / "out")
    own = {"tokenizer.json", "tokenizer_config.json", "additional_chat_templates/tool.jinja"}
    assert files_of(tmp_path / "out") == own | {"notes.txt"}
    assert {(tmp_path / "out" / name).read_text() for name in own} == {"one", '{"of": "one"}'}


@pytest.mark.parametrize("own", [{"chat_template.jinja"}, {"chat_template.jinja", "tokenizer_config.json"}, {"x.txt"}])
def test_without_a_tokenizer_only_templates_are_replaced(tmp_path, own):
    write(tmp_path / "out", {"tokenizer.json", "tokenizer_config.json", "additional_chat_templates/tool.jinja"})
    write(tmp_path / "one", own)
    copy_tokenizer(tmp_path / "one", tmp_path / "out")
    kept = {"additional_chat_templates/tool.jinja"} if own == {"x.txt"} else {"chat_template.jinja"}
    assert files_of(tmp_path / "out") == {"tokenizer.json", "tokenizer_config.json", *kept}
    assert (tmp_path / "out" / "tokenizer_config.json").read_text() == '{"of": "out"}'


@pytest.mark.parametrize("own", ["vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"])
def test_a_vocabulary_alone_is_a_tokenizer(tmp_path, own):
    write(tmp_path / "out", {"tokenizer.json", "special_tokens_map.json", "notes.txt"})
    write(tmp_path / "one", {own})
    copy_tokenizer(tmp_path / "one", tmp_path / "out")
    assert files_of(tmp_path / "out") == {own, "notes.txt"}


def test_a_tokenizer_of_bytes_needs_no_vocabulary(tmp_path):
    write(tmp_path / "out", {"tokenizer.json", "notes.txt"})
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    copy_tokenizer(tmp_path / "one", tmp_path / "out")
    assert files_of(tmp_path / "out") == {"tokenizer_config.json", "notes.txt"}


def write(folder, names):
    """Write files that hold their folder's name."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(folder.name if name != "tokenizer_config.json" else f'{{"of": "{folder.name}"}}')


def test_links_to_folders_are_named(tmp_path):
    source = tiny_model(tmp_path / "model")
    (source / "elsewhere").symlink_to(tmp_path, target_is_directory=True)
    assert left_out(source) == ("left out: elsewhere/: a link to a folder",)


@pytest.mark.parametrize("change, options", [(squeeze.quantize, {"method": "rtn"}), (squeeze.prune, {"dense": True})])
def test_recipes_take_them_along(folder, tmp_path, change, options):
    report = change(folder, out=tmp_path / "out", **{"method": "magnitude", **options})
    assert {*PLACES.values()} <= files_of(tmp_path / "out")
    assert not {name for names in BEHIND.values() for name in names} & files_of(tmp_path / "out")
    assert len([note for note in report.notes if note.startswith("left out: ")]) == len(BEHIND)


def test_densify_takes_them_along(folder, tmp_path):
    squeeze.prune(folder, "magnitude", out=tmp_path / "out")
    (tmp_path / "out" / "model.gguf").write_text("of the original")
    told = call("densify", tmp_path / "out", tmp_path / "dense", "--json")
    assert json.loads(told.stdout)["left_out"][0].startswith("left out: model.gguf: weights in another file")
    assert {*PLACES.values()} <= files_of(tmp_path / "dense") and "model.gguf" not in files_of(tmp_path / "dense")


def test_named_templates_of_a_tokenizer_stay(folder, tmp_path):
    squeeze.quantize(folder, "rtn", out=tmp_path / "out")
    templates = tmp_path / "out" / "additional_chat_templates"
    assert (templates / "tool_use.jinja").read_text() == "additional_chat_templates/tool_use.jinja"
