"""A stream's header and the settings that it names, in both directions. How it lies in the file is container.py's."""

import re
from dataclasses import replace
from typing import Any

from squeeze.codecs.stream import container, levels
from squeeze.codecs.stream.resources import LanguageOptions, Resources, needed_dictionary
from squeeze.codecs.stream.settings import Settings
from squeeze.errors import FormatError

DIGITS = 32  # of the SHA-256 of a language model or a dictionary
_LACKS = "the file uses a level or parameter that this version lacks: use a newer squeeze"


def to_header(settings: Settings) -> dict[str, Any]:
    if settings.level is None:
        return {}
    header: dict[str, Any] = {"level": settings.level.number, "numerics": container.NUMERICS}
    if settings.level.bare:
        header["bare"] = True
    if settings.language:
        header |= settings.language.to_header(DIGITS)
    if settings.dictionary:
        header["dictionary"] = settings.dictionary.identity[:DIGITS]
    return header


def from_header(header: container.Header, resources: Resources) -> Settings:
    """For decompressing what has this header.

    Raises FormatError where this version cannot decode it, ModelError where `resources.model` is not the one that the
    file needs, DictionaryError where `resources.dictionary` is not, DeviceError where `resources.device` is not there,
    and LimitError where that takes too much memory.
    """
    return replace(_from_header(header, resources), short=header.short, limits=resources.limits)


def _from_header(header: container.Header, resources: Resources) -> Settings:
    fields = header.fields
    if header.names_content:
        dictionary = needed_dictionary(fields["dictionary"], resources, container.record_identity)
        return Settings(dictionary.row, resources.threads, dictionary=dictionary)
    if not fields:
        return Settings(None, resources.threads)
    number, bare = fields.get("level"), fields.get("bare", False)
    level = levels.LEVELS.get(number) if type(number) is int and "numerics" in fields else None
    if level is None or type(bare) is not bool or (level.text and bare):
        raise FormatError(_LACKS)
    others = set(fields) - {"level", "numerics", "bare"}
    if level.text is None:
        return _of_bytes(levels.bare(level) if bare else level, fields, others, resources)
    return _of_text(level, level.text, fields, others, resources, header.short)


def _of_bytes(level: levels.Level, fields: dict[str, Any], others: set[str], resources: Resources) -> Settings:
    if not others:
        return Settings(level, resources.threads)
    if others != {"dictionary"} or level.bare or not _are_digits(fields["dictionary"]):
        raise FormatError(_LACKS)
    dictionary = needed_dictionary(fields["dictionary"], resources)
    if dictionary.row != level:
        raise FormatError("the file and its dictionary are of different levels: one of the two is damaged")
    return Settings(level, resources.threads, dictionary=dictionary)


def _of_text(
    level: levels.Level,
    text: levels.TextModel,
    fields: dict[str, Any],
    others: set[str],
    resources: Resources,
    short: bool,
) -> Settings:
    known = others - {"llamacpp", "model"} == {"weights"}
    named = isinstance(fields.get("model"), str) and _are_digits(fields.get("weights"))
    if not known or not (named or short):
        raise FormatError(_LACKS)
    # Start-up: language models bring tokenizers and kernels of their own, which other levels do without.
    from squeeze.codecs.stream.language import Language, Named

    language = Language(
        text,
        resources.threads,
        LanguageOptions(resources.model, adapter=resources.adapter, device=resources.device),
        Named.from_header(fields),
        resources.limits,
    )
    if resources.model is not None or resources.adapter is not None:
        _ = language.model  # refuses a wrong one before anything is decoded
    return Settings(level, resources.threads, language)


def _are_digits(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{DIGITS}}}", value) is not None
