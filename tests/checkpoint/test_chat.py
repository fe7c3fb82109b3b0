"""Conversations of a calibration text in a chat template: from lines of JSON, and from paragraphs of turns."""

import json

import pytest
import torch

from squeeze.checkpoint.chat import conversations_in, in_template, read_conversations
from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.checkpoint.text import tokenize
from squeeze.errors import SqueezeError
from squeeze.recipes.tokens import built_in, calibration_inputs, calibration_tokens
from tests.makers import zoo

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[reply]{% endif %}"
)
CHAT = [{"role": "user", "content": "the weather"}, {"role": "assistant", "content": "it is fine"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = zoo.write(tmp_path_factory.mktemp("models") / "model", "llama")
    path = made / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    return made


def tokenizer_of(folder):
    return load_tokenizer(folder)


def test_lines_of_messages_become_text_of_the_template(folder, tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps({"messages": CHAT}) for _ in range(8)) + "\n\n")
    text = "[user]the weather[assistant]it is fine"
    assert in_template(tokenizer_of(folder), CHAT) == text
    assert in_template(tokenizer_of(folder), CHAT, replies=True) == f"{text}[reply]"
    found = calibration_tokens(folder, path, 1, 16, 0, chat=True)
    assert (
        torch.equal(found[0], tokenize(tokenizer_of(folder), "\n".join([text] * 8))[: found.numel()]) or len(found) == 1
    )
    with pytest.raises(SqueezeError, match='"text"'):
        calibration_tokens(folder, path, 1, 16, 0)


def test_paragraphs_of_turns_are_conversations_and_others_stay():
    text = "Prose: of a book.\n\nSystem: short\nUser: the weather?\nand the time?\nAssistant: fine\n\nAssistant: alone"
    messages = [("system", "short"), ("user", "the weather?\nand the time?"), ("assistant", "fine")]
    wanted = [{"role": role, "content": content} for role, content in messages]
    assert list(conversations_in(text)) == ["Prose: of a book.", wanted, "Assistant: alone"]


def test_the_built_in_set_has_conversations(folder):
    found = list(conversations_in(built_in()))
    chats = [part for part in found if not isinstance(part, str)]
    assert 200 < len(chats) < len(found) and all(chat[0]["role"] == "user" for chat in chats)
    plain, chatted = (calibration_tokens(folder, "built-in", 4, 32, 0, chat=chat) for chat in (False, True))
    assert plain.shape == chatted.shape == (4, 32) and not torch.equal(plain, chatted)


@pytest.mark.parametrize(
    "line",
    ["{}", '{"messages": []}', '{"messages": [{"role": "user"}]}', '{"messages": [{"role": "x", "content": ""}]}', "["],
)
def test_lines_that_are_no_conversations_are_refused(tmp_path, line):
    (tmp_path / "chats.jsonl").write_text(line)
    with pytest.raises(SqueezeError, match="messages"):
        read_conversations(tmp_path / "chats.jsonl")


@pytest.mark.parametrize(
    ("source", "message"),
    [("self", "needs a calibration text"), (torch.ones(2, 8), "leave it out")],
)
def test_chat_without_a_text_is_refused(folder, source, message):
    with pytest.raises(SqueezeError, match=message):
        calibration_inputs(folder, source, 1, 8, 0, "cpu", chat=True)


def test_a_text_without_conversations_is_refused(folder, tmp_path):
    (tmp_path / "text").write_text("prose " * 100)
    with pytest.raises(SqueezeError, match='begin with "User: ", found none'):
        calibration_tokens(folder, tmp_path / "text", 1, 8, 0, chat=True)
