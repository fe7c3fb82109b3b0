"""No code that comes with a model is run, nothing is asked or fetched; what transformers raises is one line."""

import ast
import builtins
import json
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

import squeeze
from squeeze.checkpoint import pretrained
from squeeze.checkpoint.pretrained import SAFE, explained, load_config, load_tokenizer
from squeeze.cli import main
from squeeze.errors import FormatError, ModelError
from squeeze.integrations.load_model import load_model
from tests.makers import hostile, tiny_models

pytest.importorskip("transformers", reason="transformers is not installed")

SOURCES = sorted(Path(squeeze.__file__).parent.rglob("*.py"))


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_models.byte_level()


@pytest.fixture
def folder(tmp_path, tokenizer, monkeypatch):
    questions = []
    monkeypatch.setattr(builtins, "input", lambda *question: questions.append(question) or "y")
    (tmp_path / "text").write_text("def main():\n    return 1\n" * 20)
    yield hostile.write_kind(tmp_path / "model", "llama", tokenizer)
    assert not questions


COMMANDS = {
    "eval": ["eval", "IN", "--text", "TEXT"],
    "generate": ["generate", "IN", "def"],
    "kv-eval": ["kv-eval", "IN", "--text", "TEXT", "--policy", "kivi:4"],
    "quantize": ["quantize", "IN", "OUT", "--calibration", "TEXT", "--quiet"],
    "prune": ["prune", "IN", "OUT", "--calibration", "TEXT", "--quiet"],
    "factorize": ["factorize", "IN", "OUT", "--calibration", "TEXT", "--quiet"],
    "imatrix": ["imatrix", "IN", "-o", "OUT", "--calibration", "TEXT", "--quiet"],
    "apply": ["apply", "RECIPE", "IN", "OUT"],
    "densify": ["densify", "IN", "OUT"],
    "advise": ["advise", "IN"],
    "inspect": ["inspect", "IN"],
    "compress": ["compress", "TEXT", "-8", "--model", "IN", "-c"],
}


def run(command, folder):
    (folder.parent / "recipe.yaml").write_text("steps: [{quantize: {method: rtn}}]\n")
    given = {"IN": folder, "OUT": folder.with_name("out"), "TEXT": folder.with_name("text")}
    given["RECIPE"] = folder.with_name("recipe.yaml")
    return CliRunner().invoke(main, [str(given.get(word, word)) for word in COMMANDS[command]], input="y\n" * 9)


@pytest.mark.parametrize("command", COMMANDS)
def test_programs_of_unknown_architectures_do_not_run(folder, command):
    hostile.with_program(folder, folder.with_name("ran"), model_type="none such")
    done = run(command, folder)
    assert not folder.with_name("ran").exists() and not folder.with_name("out").exists()
    if command == "inspect":  # which looks at tensors alone
        assert done.exit_code == 0, done.output
        return
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), (done.output, done.exception)
    assert [line for line in done.output.splitlines() if line.startswith("Error: ")] == done.output.splitlines()[-1:]


@pytest.mark.parametrize("command", ["eval", "generate"])
def test_programs_beside_known_architectures_do_not_run(folder, command):
    hostile.with_program(folder, folder.with_name("ran"))
    (folder / "tokenizer_config.json").unlink()
    done = run(command, folder)
    assert done.exit_code == 0, done.output
    assert not folder.with_name("ran").exists()


def test_code_of_a_folder_is_refused_by_name(folder):
    hostile.with_program(folder, folder.with_name("ran"), model_type="none such")
    with pytest.raises(ModelError, match="'none such' is unknown to transformers, and code that comes with a model is"):
        load_config(folder)
    with pytest.raises(ModelError, match="has no tokenizer that transformers can load: "):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "kind, files",
    [
        ("bert", {"vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n"}),
        ("t5", {"tokenizer_config.json": '{"tokenizer_class": "ByT5Tokenizer"}'}),
    ],
)
def test_tokenizers_without_a_tokenizer_json(tmp_path, kind, files):
    for name, text in {"config.json": f'{{"model_type": "{kind}"}}', **files}.items():
        (tmp_path / name).write_text(text)
    assert len(load_tokenizer(tmp_path)("hello")["input_ids"]) == (3 if kind == "bert" else 6)


def test_a_vocabulary_that_needs_sentencepiece(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "spiece.model").write_bytes(b"not a vocabulary")
    with pytest.raises(ModelError, match=r"for its spiece\.model: pip install sentencepiece$"):
        load_tokenizer(tmp_path)


TOKENIZERS = {
    "empty": "",
    "a list": "[]",
    "no model": "{}",
    "nested": '{"version": "1.0", "model": ' + '{"a":' * 5000 + "1" + "}" * 5001,
    "numbers for tokens": '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": "b"}, "merges": [["x", "y"]]}}',
    "not UTF-8": b"\xff\xfe{}",
    "cut off": '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a',
}


@pytest.mark.parametrize("fault", TOKENIZERS)
def test_hostile_tokenizers_end_in_one_line(folder, fault):
    text = TOKENIZERS[fault]
    (folder / "tokenizer.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    for command in ("eval", "compress"):
        done = run(command, folder)
        assert done.exit_code == 1 and isinstance(done.exception, SystemExit), (done.output, done.exception)
        assert done.output.count("\n") == 1 and done.output.strip().isprintable(), done.output


def change_tokenizer(folder, **parts):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


def test_tokenizers_that_make_texts_longer_without_end(folder):
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    change_tokenizer(folder, normalizer={"type": "Sequence", "normalizers": [double] * 12})
    assert len(load_tokenizer(folder)("a")["input_ids"]) > 100
    change_tokenizer(folder, normalizer={"type": "Sequence", "normalizers": [double] * 40})
    with pytest.raises(FormatError, match=r"tokenizer\.json: its normalizer makes texts more than 4096 times as long"):
        load_tokenizer(folder)


@pytest.mark.parametrize("command", ["eval", "compress"])
def test_expressions_without_end_are_one_line(folder, command):
    """The library gives up after some tries and panics, which is no Exception."""
    split = {"type": "Split", "pattern": {"Regex": r"(\w+\s?)+[^\s\S]"}, "behavior": "Isolated", "invert": False}
    known = json.loads((folder / "tokenizer.json").read_text())["pre_tokenizer"]
    change_tokenizer(folder, pre_tokenizer={"type": "Sequence", "pretokenizers": [split, known]})
    folder.with_name("text").write_text("def main return " * 100)
    done = run(command, folder)
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), (done.output, done.exception)
    assert "retry-limit-in-match" in done.output


def test_tensors_that_are_missing_are_not_made_up(folder, tokenizer):
    values = tiny_models.tensors(400)
    del values["model.layers.1.mlp.up_proj.weight"]
    tiny_models.write_folder(folder, tokenizer, values, vocab_size=400)
    with pytest.raises(FormatError, match=r"describes a model of|has no tensor for"):
        load_model(folder)


class Panic(BaseException):
    """A panic, as compiled libraries raise it."""


def test_errors_of_other_libraries_become_one_line():
    for error in (Panic("a\nb"), RuntimeError("\x1b[31mred" + "x" * 1000), AssertionError(), KeyError("\ud800")):
        with pytest.raises(ModelError) as found, explained("model"):
            raise error
        assert str(found.value).startswith("model: ") and str(found.value).isprintable()
        assert len(str(found.value)) < 300
    for error in (KeyboardInterrupt(), MemoryError(), BrokenPipeError(), FormatError("x")):
        with pytest.raises(type(error)), explained("model"):
            raise error


@cache
def nodes():
    """Return the calls and imports of all sources."""
    kinds = (ast.Call, ast.Import, ast.ImportFrom)
    return [
        (path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)
    ]


def calls():
    """Yield place, name and arguments of the calls that have rules: a loader's, and all of yaml."""
    for path, node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in (*WANTED, "load") or (isinstance(owner, ast.Name) and owner.id == "yaml"):
                yield f"{path.name}:{node.lineno}", ast.unparse(node.func), arguments(node)


def arguments(call):
    found = {entry.arg: ast.unparse(entry.value) for entry in call.keywords if entry.arg}
    safe = any(entry.arg is None and ast.unparse(entry.value) == "SAFE" for entry in call.keywords)
    return {**found, **({name: str(value) for name, value in SAFE.items()} if safe else {})}


WANTED = {
    "from_config": {"trust_remote_code": "False"},
    "from_pretrained": {"trust_remote_code": "False", "local_files_only": "True"},
    "load_dataset": {"trust_remote_code": "False"},
}
NEVER = ("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "runpy")


def test_every_call_that_could_run_code_is_told_not_to():
    assert SAFE == {"local_files_only": True, "trust_remote_code": False}
    seen = []
    for place, name, given in calls():
        owner, _, last = name.rpartition(".")
        wanted = WANTED.get(last, {})
        if last == "from_pretrained" and owner not in ("AutoConfig", "AutoTokenizer", "processor"):
            wanted = {**wanted, "use_safetensors": "True"}
        if name in ("torch.load", "torch.jit.load"):
            wanted = {"weights_only": "True"}
        if name in ("np.load", "numpy.load"):
            wanted = {"allow_pickle": "False"}
        if owner == "yaml":
            assert last in ("safe_load", "parse"), place
            wanted = {"Loader": "yaml.SafeLoader"} if last == "parse" else {}
        assert wanted.items() <= given.items(), f"{place}: {name}"
        seen += [last] * bool(wanted)
    assert {"from_pretrained", "load", "load_dataset", "parse"} <= set(seen)


def test_nothing_imports_what_runs_what_it_reads():
    for path, node in nodes():
        if isinstance(node, ast.Import):
            names = [entry.name for entry in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "input"), f"{path}:{node.lineno}"
            continue
        else:
            continue
        assert not {name.partition(".")[0] for name in names} & set(NEVER), f"{path}:{node.lineno}"


def no_network():
    raise OSError("no network")


def test_the_hub_is_not_asked(folder, monkeypatch):
    asked = []
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, lambda *place, **given: asked.append(place) or no_network())
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/model"}))
    for load in (load_model, load_config, load_tokenizer):
        with suppress(FormatError, ModelError):
            load(folder)
    assert not asked
