"""Conversations as text in a model's chat template."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from squeeze.checkpoint.pretrained import explained
from squeeze.checkpoint.text import tokenize
from squeeze.errors import FormatError, SqueezeError
from squeeze.system.documents import parse
from squeeze.system.limits import Limits

__all__ = ["conversations_in", "in_template", "read_conversations"]

Message = Mapping[str, str]  # with a role and a content
_TURN = re.compile(r"^(User|Assistant|System): ", re.MULTILINE)
_ROLES = ("system", "user", "assistant", "tool")


def in_template(tokenizer: Any, messages: Sequence[Message], replies: bool = False) -> str:
    """Return messages in a tokenizer's chat template, without a first token that the tokenizer adds by itself.

    Args:
        tokenizer: The tokenizer.
        messages: Messages of a conversation.
        replies: Whether the text ends where the model's reply begins.

    Raises:
        SqueezeError: If there is no chat template.
        ModelError: If the template does not take the messages.
    """
    name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
    if not getattr(tokenizer, "chat_template", None):
        raise SqueezeError(f"{name}: has no chat template: leave out `chat`")
    with explained(name):
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=replies
        )
    first = str(getattr(tokenizer, "bos_token", None) or "")
    adds = bool(first) and tokenize(tokenizer, "x")[:1].tolist() == [tokenizer.bos_token_id]
    return text.removeprefix(first) if adds else text


def read_conversations(path: Path) -> list[list[Message]]:
    """Return the conversations of a .jsonl file, each a line with "messages".

    Raises SqueezeError if a line has none, or a message lacks a role or a content.
    """
    try:
        lines = [line for line in path.read_text("utf-8").split("\n") if line.strip()]
        found = [[_message(message) for message in parse(line, Limits())["messages"]] for line in lines]
    except (FormatError, KeyError, TypeError, ValueError):
        raise SqueezeError(
            f'{path}: a line is not a JSON object with "messages", each with a "role" and a "content"'
        ) from None
    if not found or not all(found):
        raise SqueezeError(f"{path}: a conversation has no messages")
    return found


def _message(message: Any) -> Message:
    role, content = message["role"], message["content"]
    if role not in _ROLES or not isinstance(content, str):
        raise ValueError(role)
    return {"role": role, "content": content}


def conversations_in(text: str) -> Iterator[str | list[Message]]:
    """Yield the paragraphs of a text, those that begin with "User: " as messages.

    Messages of a paragraph begin with "System: ", "User: " or "Assistant: " at the start of a line.
    """
    for paragraph in text.split("\n\n"):
        first = _TURN.match(paragraph)
        if first is None or first[1] == "Assistant":
            yield paragraph
            continue
        _, *parts = _TURN.split(paragraph)
        yield [
            {"role": role.lower(), "content": content.strip()}
            for role, content in zip(parts[::2], parts[1::2], strict=True)
        ]
