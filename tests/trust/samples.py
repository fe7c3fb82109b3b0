"""A small valid file of every format that names something, its strings, and the commands that read it."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import squeeze
from squeeze.errors import SqueezeError
from squeeze.kv import KIVI, QuantizedKVCache
from squeeze.kv.policies import describe
from squeeze.packing import container
from tests.fuzz import mutations, streams, tensorfiles
from tests.fuzz.formats import dictionary
from tests.makers import kv_models, tiny_models
from tests.makers.checkpoints import write
from tests.makers.command import run
from tests.makers.streams import long
from tests.trust.places import Change, places

Command = tuple[str, ...] | Callable[[], object]
_GOLDEN = Path(__file__).parents[1] / "golden"
_PLANTED = (  # what transformers or squeeze might take for a name, and a config.json may say
    *("_name_or_path", "name_or_path", "base_model_name_or_path", "transformers_weights", "tokenizer_file"),
    *("tokenizer_class", "_commit_hash", "adapter", "gguf_file", "custom_generate", "weights", "base"),
)
_CODE = {"AutoConfig": "a.B", "AutoModelForCausalLM": "a.B", "AutoTokenizer": ["a.B", None]}
_EVAL = ("eval", "model", "--text", "t.txt", "--window", "16", "--windows", "1")
_MODEL: tuple[Command, ...] = (
    _EVAL,
    ("generate", "model", "a", "-n", "1"),
    ("densify", "model", "out"),
    ("pack", "model", "out"),
    ("inspect", "model"),
    ("history", "model"),
    ("unpack", "model", "out"),
    ("verify", "model"),
    ("quantize", "model", "out", "--method", "rtn"),
    ("quantize", "model", "out", "--format", "gguf", "--type", "q8_0"),
    ("compare", "model", "model", "--prompts", "t.txt", "-n", "1"),
    ("report", "model", "-o", "page.html"),
    ("compress", "-8", "--model", "model", "t.txt"),
    lambda: _from_pretrained("model"),
)


NAMES = (
    *("config.json", "config.json, packed", "config.json, delta", "config.json, guarded", "tokenizer_config.json"),
    *("generation_config.json", "adapter_config.json", "index", "index, packed", "squeeze.json", "packed file"),
    *("header", "dictionary", "members", "manifest", "manifest of shards", "journal", "recipe", "report"),
    *("report of a folder", "saved cache", "policy"),
)


@dataclass(frozen=True)
class Sample:
    """A file that names something, and the commands that read it.

    Attributes:
        path: The file in the working folder.
        value: Its content.
        to_bytes: Returns the file for another content.
        commands: All commands that read it, those that reach most first. They run in the folder.
        files: Adds other files that the commands need.
    """

    path: str
    value: Any
    to_bytes: Callable[[Any], bytes]
    commands: tuple[Command, ...]
    files: Callable[[Path], None] = field(default=lambda folder: None)  # what else the commands need

    def cases(self) -> Iterator[tuple[str, Change]]:
        return places(self.value)


def _from_pretrained(folder: str) -> None:
    """Load a model as a program that uses transformers does."""
    import transformers

    import squeeze.integrations.transformers  # noqa: F401

    with suppress(Exception):  # that is transformers' own to say
        transformers.AutoTokenizer.from_pretrained(folder)
    transformers.AutoModelForCausalLM.from_pretrained(folder)


def _json(value: Any) -> bytes:
    return mutations.to_json(value).encode("utf-8", "surrogatepass")


def _lines(value: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in value)


def _copied(source: Path, name: str = "model") -> Callable[[Path], None]:
    def copy(folder: Path) -> None:
        shutil.copytree(source, folder / name, dirs_exist_ok=True)

    return copy


def make(here: Path) -> dict[str, Sample]:
    """All samples, for which `here` may be used."""
    model = tiny_models.write_folder(here / "model", tiny_models.byte_level(), vocab_size=400)
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (model / "generation_config.json").write_text('{"eos_token_id": 2, "transformers_version": "5.23.0"}')
    squeeze.pack(model, here / "packed")
    files = _of_packed(here) | _of_streams(here) | _of_manifests(here) | _of_followed(here)  # shards are of streams
    return _of_models(here, model) | files | _of_recipes(model) | _of_caches(here)


def _of_models(here: Path, model: Path) -> dict[str, Sample]:
    config = json.loads((model / "config.json").read_text())
    packed = json.loads((here / "packed" / "config.json").read_text())
    ours = packed["quantization_config"] | {"base_folder": "x", "quantization": {"quant_method": "x"}}
    delta = {"quant_method": "squeeze-delta", "version": 1, "dtype": "float32", "base_folder": "x", "transposed": ["x"]}
    delta["base"] = {"name": "x", "sha256": ["x"]}
    claimed = {"quant_method": "compressed-tensors", "format": "squeeze-delta"}
    claimed |= {"config_groups": {"import squeeze.integrations.transformers": "squeeze-delta"}}
    shards = here / "shards"
    shutil.copytree(model, shards)
    (shards / "model.safetensors").rename(shards / "model-00001-of-00001.safetensors")
    names = tensorfiles.parsed((model / "model.safetensors").read_bytes()).entries()
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (shards / "model.safetensors.index.json").write_bytes(_json(index))
    index["weight_map"] = dict(list(index["weight_map"].items())[:3])
    squeeze.pack(shards, here / "packed shards")
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "tokenizer_file": "x", "name_or_path": "x"}
    tokens |= {"auto_map": {"AutoTokenizer": ["a.B", "a.B"]}, "chat_template": "x", "bos_token": "a", "vocab_file": "x"}
    generation = {"_from_model_config": True, "transformers_version": "5", "custom_generate": "x", "assistant": "x"}
    adapter = {
        "base_model_name_or_path": "x",
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "auto_mapping": {"x": "x"},
    }
    manifest = json.loads((here / "packed" / "squeeze.json").read_text())
    plain, coded = _copied(model), _copied(here / "packed")
    return {
        "config.json": Sample(
            "model/config.json", config | dict.fromkeys(_PLANTED, "x") | {"auto_map": _CODE}, _json, _MODEL, plain
        ),
        "config.json, packed": Sample(
            "model/config.json", packed | {"quantization_config": ours}, _json, _MODEL, coded
        ),
        "config.json, delta": Sample(
            "model/config.json", config | {"quantization_config": delta}, _json, _MODEL, plain
        ),
        "config.json, guarded": Sample(
            "model/config.json", config | {"quantization_config": delta | claimed}, _json, _MODEL, plain
        ),
        "tokenizer_config.json": Sample("model/tokenizer_config.json", tokens, _json, _MODEL, plain),
        "generation_config.json": Sample("model/generation_config.json", generation, _json, _MODEL, plain),
        "adapter_config.json": Sample("model/adapter_config.json", adapter, _json, _MODEL, plain),
        "index": Sample("model/model.safetensors.index.json", index, _json, _MODEL, _copied(shards)),
        "index, packed": Sample(
            "model/model.safetensors.index.json", index, _json, _MODEL, _copied(here / "packed shards")
        ),
        "squeeze.json": Sample(
            "model/squeeze.json", manifest, _json, (("unpack", "model", "out"), ("verify", "model"), *_MODEL), coded
        ),
    }


def _of_packed(here: Path) -> dict[str, Sample]:
    """Return the description in the header of a packed file, alone and as a difference."""
    write(here / "one.safetensors", {"w": ("BF16", (64, 64), bytes(8192))})
    write(here / "two.safetensors", {"w": ("BF16", (64, 64), bytes(8190) + b"ab")})
    squeeze.pack(here / "one.safetensors", here / "base.safetensors")
    squeeze.pack(here / "two.safetensors", here / "coded.safetensors", base=here / "base.safetensors")
    file = tensorfiles.parsed((here / "coded.safetensors").read_bytes())
    described = json.loads(file.header[tensorfiles.METADATA][container.KEY])
    commands: tuple[Command, ...] = (
        *(("unpack", "a.safetensors", "out.safetensors"), ("history", "a.safetensors"), ("verify", "a.safetensors")),
        *(("inspect", "a.safetensors"), ("pack", "a.safetensors", "out.safetensors")),
        lambda: squeeze.load("a.safetensors"),
    )

    def base(folder: Path) -> None:
        shutil.copyfile(here / "base.safetensors", folder / "base.safetensors")

    def to_bytes(value: Any) -> bytes:
        return file.described(container.KEY, value).to_bytes()

    return {"packed file": Sample("a.safetensors", described, to_bytes, commands, base)}


def _of_streams(here: Path) -> dict[str, Sample]:
    raw = b"a text of some words, again and again. " * 20
    (stream,) = streams.parsed(long(raw, 1, 1 << 20), raw)
    fields = stream.fields | {"dictionary": "x" * 16, "model": "x", "weights": "0" * 16, "codec": "x", "name": "x"}
    commands: tuple[Command, ...] = (
        *(("test", "a.sqz"), ("list", "-v", "a.sqz"), ("decompress", "a.sqz"), ("explain", "a.sqz")),
        *(("test", "--model", "model", "a.sqz"), ("decompress", "--salvage", "-c", "a.sqz")),
    )

    def of_fields(value: Any) -> bytes:
        stream.header = streams.header_of(value)
        return stream.to_bytes()

    header, parts = dictionary._parsed((_GOLDEN / "dictionary.5.network.sqzp").read_bytes())
    of_dictionary: tuple[Command, ...] = (
        ("compress", "-k", "-D", "a.sqzp", "t.txt"),
        ("list", "a.sqzp"),
        lambda: squeeze.Dictionary.read("a.sqzp"),
    )
    (here / "corpus").mkdir()
    for name in ("a.txt", "b.txt"):
        (here / "corpus" / name).write_bytes(raw)
    (here / "tars").mkdir()
    run("compress", "-q", "-r", "-1", "--shards", "1M", here / "corpus", "-o", here / "tars" / "part-{}.tar.sqz")
    lines = squeeze.decompress((here / "tars" / "part-0.tar.members.sqz").read_bytes()).splitlines()
    members: tuple[Command, ...] = (
        ("list", "part-0.tar.sqz"),
        ("decompress", "part-0.tar.sqz", "--member", "a.txt", "-o", "out"),
        ("test", "part-0.tar.sqz"),
        ("decompress", "part-0.tar.sqz"),
    )

    def shard(folder: Path) -> None:
        shutil.copyfile(here / "tars" / "part-0.tar.sqz", folder / "part-0.tar.sqz")

    return {
        "header": Sample("a.sqz", fields, of_fields, commands),
        "dictionary": Sample("a.sqzp", header, lambda value: dictionary._built(value, parts), of_dictionary),
        "members": Sample(
            "part-0.tar.members.sqz",
            [json.loads(line) for line in lines],
            lambda value: squeeze.compress(_lines(value), 1),
            members,
            shard,
        ),
    }


def _of_manifests(here: Path) -> dict[str, Sample]:
    """Return manifests of runs over many files, with single outputs and with shards."""
    record = {"source": "tree/a.txt", "size": 780, "stamp": "x", "output": "tree/a.txt.sqz", "output_size": 9}
    record |= {"checksum": "00", "attempts": 1, "error": "", "version": ""}
    head = {"manifest": 1, "session": "0a0b0c0d", "operation": "compress", "options": {"level": "1"}}
    complete = {"complete": True, "files": 1}
    sharded = head | {
        "operation": "shards",
        "options": {"root": "tree", "output": "part-{}.tar.sqz", "dictionary": "x"},
    }
    in_shard, shard = record | {"output": "part-0.tar.sqz"}, dict.fromkeys(("source", "output"), "part-0.tar.sqz")
    compress = ("compress", "-q", "-r", "-1", "--shards", "1M", "tree", "-o", "part-{}.tar.sqz")
    name, of_shards = "tree/.squeeze-compress.jsonl", "part-manifest.jsonl"

    def tree(folder: Path) -> None:
        (folder / "tree").mkdir()
        (folder / "tree" / "a.txt").write_bytes(b"a text " * 100)
        (folder / "tree" / "a.txt.sqz").write_bytes(squeeze.compress(b"a text " * 100, 1))
        shutil.copyfile(here / "tars" / "part-0.tar.sqz", folder / "part-0.tar.sqz")

    def test(manifest: str) -> tuple[Command, ...]:
        return ("test", "--manifest", manifest), ("test", "--manifest", manifest, "tree")

    return {
        "manifest": Sample(name, [head | {"sources": ["tree"]}, record, complete], _lines, test(name), tree),
        "manifest of shards": Sample(
            of_shards,
            [sharded, in_shard, record | shard, complete],
            _lines,
            (*test(of_shards), compress, (*compress, "--train-dictionary")),
            tree,
        ),
    }


def _of_followed(here: Path) -> dict[str, Sample]:
    """Return the journal of a training run whose checkpoints are packed as they appear."""
    (here / "followed").mkdir()
    for step in (1, 2):
        source = here / "run" / f"checkpoint-{step}"
        source.mkdir(parents=True)
        write(source / "model.safetensors", {"w": ("BF16", (64, 64), bytes([step]) * 8192)})
        squeeze.pack(source, here / "followed" / source.name)
    journal = {"format": 1, "packed": ["checkpoint-1", "checkpoint-2"]}
    follow = ("pack", "-q", "--follow", "--interval", "0.01", "--until-idle", "0.02")
    commands: tuple[Command, ...] = (
        (*follow, "--keep", "1", "run", "out"),
        (*follow, "--keep", "1", "--remove-source", "run", "out"),
    )

    def both(folder: Path) -> None:
        _copied(here / "run", "run")(folder)
        _copied(here / "followed", "out")(folder)

    return {"journal": Sample("out/.squeeze-follow.json", journal, _json, commands, both)}


def _of_recipes(model: Path) -> dict[str, Sample]:
    """Return recipes and the reports of what a command did."""
    recipe: dict[str, Any] = {"calibration": "x", "samples": 1, "sequence_length": 8}
    recipe["steps"] = [{"quantize": {"method": "gptq", "bits": 4, "group_size": 16}}, {"pack": {"base": "x"}}]
    recipes: tuple[Command, ...] = (
        ("apply", "a.yaml", "model", "out"),
        ("apply", "a.yaml", "--models", "model", "-o", "out"),
    )
    report = {"source": "x", "target": "x", "method": "rtn", "format": "x", "settings": {"calibration": "x"}}
    report |= {"layers": [], "left": {"x": "x"}, "parameters": 1, "raw_bytes": 1, "stored_bytes": 1, "seconds": 1.0}
    report |= {"bits_per_weight": 4.0, "bits_per_parameter": 4.0, "fallbacks": ["x"], "packed": None}
    report |= {"before": None, "after": None, "tasks": [], "notes": []}
    return {
        "recipe": Sample("a.yaml", recipe, _json, recipes, _copied(model)),
        "report": Sample("a.json", report, _json, (("report", "a.json", "-o", "page.html"),)),
        "report of a folder": Sample(
            "model/compression_report.json", report, _json, (("report", "model"), _EVAL), _copied(model)
        ),
    }


def _of_caches(here: Path) -> dict[str, Sample]:
    """Policies of a KV cache, and saved caches."""
    network = kv_models.llama()
    cache = QuantizedKVCache(network.config, KIVI(4, group=16, window=16))
    with torch.no_grad():
        network(kv_models.tokens(1, 40), past_key_values=cache)
    cache.save(here / "a.kv")
    file = tensorfiles.parsed((here / "a.kv").read_bytes())
    described = json.loads(file.header[tensorfiles.METADATA]["squeeze.kv"])

    def load() -> None:
        with suppress(SqueezeError):
            QuantizedKVCache.load("a.kv", network.config)

    policy = describe(KIVI(4, group=16, window=16))
    generate = ("generate", "model", "a", "-n", "1")
    return {
        "saved cache": Sample(
            "a.kv",
            described,
            lambda value: file.described("squeeze.kv", value).to_bytes(),
            (load, (*generate, "--kv", "4", "--kv-file", "a.kv")),
            _copied(here / "model"),
        ),
        "policy": Sample(
            "p.json",
            policy,
            _json,
            ((*generate, "--kv", "p.json"), ("kv-eval", "model", "--text", "t.txt", "--policy", "p.json", "--no-cost")),
            _copied(here / "model"),
        ),
    }
