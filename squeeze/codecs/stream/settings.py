"""What decides how the blocks of a stream are coded: chosen by a user here, or read from a header in header.py."""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

from squeeze.codecs.stream import container, levels
from squeeze.codecs.stream.container import Content
from squeeze.codecs.stream.levels import Level, those_with_language_model
from squeeze.codecs.stream.resources import AUTO, NONE, LanguageOptions, Resources, needed_dictionary
from squeeze.errors import FormatError, LevelError
from squeeze.system import cores
from squeeze.system.limits import Limits

if TYPE_CHECKING:
    from squeeze.codecs.deep.learned import Start
    from squeeze.codecs.deep.presets import DeepPreset
    from squeeze.codecs.stream.dictionary import Dictionary
    from squeeze.codecs.stream.language import Language


@dataclass(frozen=True)
class Threads:
    """Threads for blocks beside each other, and for one that goes through a language model."""

    blocks: int  # that are coded at a time
    per_text: int  # on a block that goes through a language model


def allot(level: Level | None, threads: int | None, texts: int = 1) -> Threads:
    """`threads` of a level, of which None is one, and one a core for a language model.

    A language model uses all threads for one block, or shares them out to `texts` at once.
    """
    if level and level.needs_language_model:
        return Threads(texts, max(1, (threads or cores.available()) // texts))
    return Threads(threads or 1, 1)


BACKENDS = ("exact", "llamacpp")  # what runs the language model


@dataclass(frozen=True)
class Settings:
    """What a stream's header names, and with how many threads to go about it."""

    level: Level | None = None  # None where all blocks are stored
    threads: int | None = None
    language: "Language | None" = None  # where the level needs a language model
    dictionary: "Dictionary | None" = None
    short: bool = False  # a short stream, which has one block and next to nothing around it
    limits: Limits | None = None  # that a file from somewhere must keep
    alone: bool = False  # whether no other block is worked on at the same time
    content: Content | None = None  # what every block to be coded counts as; None for what it seems to hold

    @cached_property
    def allotment(self) -> Threads:
        return allot(self.level, self.threads, self.language.at_once if self.language else 1)

    @property
    def per_block(self) -> int:
        """Threads for a block that no language model reads."""
        if self.language:
            return self.allotment.per_text if self.allotment.blocks == 1 else 1
        return self.allotment.blocks if self.alone else 1

    @property
    def bound(self) -> bool:
        """Whether the file opens only on machines like this one, so that every block is verified."""
        return self.language is not None and self.language.bound

    @property
    def names_content(self) -> bool:
        """Whether the dictionary says what a block holds, so that its payload does not."""
        return self.short and self.dictionary is not None

    def start(self, content: Content, models: "DeepPreset") -> "Start | None":
        """What a block's models begin with: a dictionary knows one kind of content."""
        if self.dictionary and self.dictionary.content == content:
            return self.dictionary.start
        if not models.warm_start:
            return None
        from squeeze.codecs.stream import dictionary

        return dictionary.built_in_start(models)


def begun(settings: Settings, name: str) -> Settings:
    """Those for compressing with what is built in by this name (resources.py), where there is no dictionary. Raises
    LevelError where the level does not have it, or cannot do without it."""
    if name == AUTO or settings.level is None:
        return settings
    if name == NONE:
        return replace(settings, level=levels.bare(settings.level))
    if not levels.has_built_in(settings.level, name):
        raise LevelError(f"the built-in dictionary {name} belongs to levels 1 to 6")
    return replace(settings, content=Content(name))


def _language_module() -> ModuleType:
    """Import the module of language models, whose tokenizers and kernels other levels do without."""
    from squeeze.codecs.stream import language

    return language


def choose(level: Level, threads: int | None, dictionary: "Dictionary | None", options: LanguageOptions) -> Settings:
    """For compressing. Raises LevelError, ModelError or DeviceError."""
    if options.backend not in (None, *BACKENDS):
        raise LevelError(f"there is no backend {options.backend!r}: use {' or '.join(BACKENDS)}")
    if dictionary and dictionary.level != level.number:
        raise LevelError(
            f"the dictionary was trained for level {dictionary.level}: leave the level out, or train another"
        )
    if options.adapter and options.backend == "llamacpp":
        raise LevelError("llama.cpp runs a model as it is: leave out the adapter, or the backend")
    if level.text is None:
        if options not in (LanguageOptions(), LanguageOptions(device="cpu")):
            raise LevelError(
                "a language model, adapter, backend, lanes, window and device belong to levels "
                f"{those_with_language_model()}"
            )
        return Settings(dictionary.row if dictionary else level, threads, dictionary=dictionary)
    return Settings(level, threads, _language_module().choose_language(level.text, threads, options), dictionary)


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
    module = _language_module()
    language = module.Language(
        text,
        resources.threads,
        LanguageOptions(resources.model, adapter=resources.adapter, device=resources.device),
        module.Named.from_header(fields),
        resources.limits,
    )
    if resources.model is not None or resources.adapter is not None:
        _ = language.model  # refuses a wrong one before anything is decoded
    return Settings(level, resources.threads, language)


def _are_digits(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{DIGITS}}}", value) is not None
