"""The settings with which the blocks of a stream are coded: resolved from a user's options, or read from a header.

container.py has the bytes of headers.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

from squeeze.codecs.content import Content
from squeeze.codecs.stream import container, levels
from squeeze.codecs.stream.levels import Level, language_model_levels
from squeeze.codecs.stream.resources import (
    AUTO,
    NONE,
    DictionarySource,
    LanguageOptions,
    Resources,
    as_dictionary,
    built_in_name,
    needed_dictionary,
)
from squeeze.errors import FormatError, LevelError, OptionError
from squeeze.system import machine
from squeeze.system.limits import Limits

if TYPE_CHECKING:
    from squeeze.codecs.deep.initial_state import Start
    from squeeze.codecs.deep.presets import DeepPreset
    from squeeze.codecs.stream.dictionary import Dictionary
    from squeeze.codecs.stream.language import Language


@dataclass(frozen=True)
class Threads:
    """The division of threads: blocks that are coded at once, and threads for each text of a language model."""

    blocks: int  # blocks that are coded at once
    per_text: int  # threads for a block of a language model


def allot(level: Level | None, threads: int | None, texts: int = 1) -> Threads:
    """Divide threads between blocks.

    Args:
        level: row of the level, or None.
        threads: None is one, and one per core for a language model.
        texts: texts of a language model at once, which share the threads.
    """
    if level and level.needs_language_model:
        return Threads(texts, max(1, (threads or machine.available_cores()) // texts))
    return Threads(threads or 1, 1)


WINDOW = 1 << 28  # bytes of the default window of repeats
_LEAST_BLOCK = 1 << 20  # block size from which repeats are looked for by default
BACKENDS = ("exact", "llamacpp")  # engines that run the language model


@dataclass(frozen=True)
class Settings:
    """The settings of a stream's header, with threads and limits."""

    level: Level | None = None  # None if all blocks are stored
    threads: int | None = None
    language: "Language | None" = None
    dictionary: "Dictionary | None" = None
    short: bool = False  # a short stream, which has one block and a header of a few bytes
    limits: Limits | None = None  # for untrusted files
    alone: bool = False  # whether no other block is coded at the same time
    content: Content | None = None  # content of every block; None: detect it
    parse: bool = False  # whether wrappers such as zip archives are opened
    window: int = 0  # bytes before a block that it may repeat, a multiple of 1 MiB; 0: none

    @cached_property
    def allotment(self) -> Threads:
        return allot(self.level, self.threads, self.language.at_once if self.language else 1)

    @property
    def per_block(self) -> int:
        """Threads for a block that no language model codes."""
        if self.language:
            return self.allotment.per_text if self.allotment.blocks == 1 else 1
        return self.allotment.blocks if self.alone else 1

    @property
    def bound(self) -> bool:
        """True if the file opens only on machines like this one, so that every block is verified."""
        return self.language is not None and self.language.bound

    @property
    def names_content(self) -> bool:
        """True if the dictionary fixes the content of a block, so that its payload does not name it."""
        return self.short and self.dictionary is not None

    def start(self, content: Content, models: "DeepPreset") -> "Start | None":
        """Return what a block's models start with: the dictionary if it is for this content, else built-in weights or
        None."""
        if self.dictionary and self.dictionary.content == content:
            return self.dictionary.start
        if not models.warm_start:
            return None
        from squeeze.codecs.stream import dictionary

        return dictionary.built_in_start(models)


def resolve_settings(
    level: int | None,
    threads: int | None,
    block_size: int | None,
    dictionary: DictionarySource,
    language: LanguageOptions,
    parse: bool = True,
    long: bool | int | None = None,
) -> tuple[Settings, int]:
    """Return the settings for options of `compress_stream`, and the most raw bytes of a block.

    Args:
        level: 1 to 9; None: that of the dictionary, or the default.
        threads: number of threads.
        block_size: most raw bytes of a block, or None for the default.
        dictionary: a Dictionary, the path of one, or the name of built-in weights.
        language: options of the language model.
        parse: whether wrappers are opened if there is no dictionary.
        long: window of repeats in bytes; True: the default; None: the default unless blocks are small; False: none.

    Raises:
        OptionError: if the window is impossible.
        LevelError: if level, block size or options do not fit together.
        DictionaryError: if the dictionary cannot be read.
        ModelError: if the language model is missing.
        DeviceError: if the device is missing.
    """
    known = as_dictionary(dictionary)
    if level is None:
        level = known.level if known else levels.DEFAULT
    row, content = _with_built_in(levels.level(level), built_in_name(dictionary) or AUTO)
    size = levels.DEFAULT_BLOCK if block_size is None else block_size
    if not 1 <= size <= container.MAX_BLOCK:
        raise LevelError(f"a block size must be from 1 byte to {container.MAX_BLOCK >> 20} MiB, got {size:,}")
    settings = settings_for_level(row, threads, known, language)
    return replace(settings, content=content, parse=parse and known is None, window=_window(long, size)), size


def _window(long: bool | int | None, size: int) -> int:
    """Return the window of repeats in bytes; `long` and `size` as `resolve_settings` has them."""
    if long is None or isinstance(long, bool):
        small = size < _LEAST_BLOCK and long is None  # blocks for random access, which others would slow down
        return 0 if small or long is False else WINDOW
    if not 1 << _MIB <= long <= 1 << container.MOST_WINDOW:
        most = 1 << container.MOST_WINDOW - 40
        raise OptionError(f"a window of repeats must be from 1 MiB to {most} TiB, got {long:,} bytes")
    return -(-long // (1 << _MIB)) << _MIB


def _with_built_in(level: Level, name: str) -> tuple[Level, Content | None]:
    """Return the row of a level that uses the built-in weights of a name (resources.py), and the content of every
    block, None to detect it.

    Raises:
        LevelError: if the level does not have them, or always has them.
    """
    if name == AUTO:
        return level, None
    if name == NONE:
        return levels.bare(level), None
    if not levels.has_built_in(level, name):
        raise LevelError(f"the built-in dictionary {name} belongs to levels 1 to 6")
    return level, Content(name)


def _language_module() -> ModuleType:
    """Import the module of language models, whose tokenizers and kernels other levels do without."""
    from squeeze.codecs.stream import language

    return language


def settings_for_level(
    level: Level, threads: int | None, dictionary: "Dictionary | None", options: LanguageOptions
) -> Settings:
    """Return the settings of a level for compression.

    Args:
        level: row of the level.
        threads: number of threads.
        dictionary: a dictionary or None.
        options: of the language model.

    Raises:
        LevelError: if the options do not fit the level.
        ModelError: if the language model is missing.
        DeviceError: if the device is missing.
    """
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
                f"{language_model_levels()}"
            )
        return Settings(dictionary.row if dictionary else level, threads, dictionary=dictionary)
    return Settings(level, threads, _language_module().resolve_language(level.text, threads, options), dictionary)


_MIB = 20
DIGITS = 32  # hexadecimal digits of a language model's or dictionary's SHA-256
_LACKS = "the file uses a level or parameter that this version lacks: use a newer squeeze"


def to_header(settings: Settings) -> dict[str, Any]:
    """Return the header fields that name these settings."""
    if settings.level is None:
        return {}
    header: dict[str, Any] = {"level": settings.level.number, "numerics": container.NUMERICS}
    if settings.level.bare:
        header["bare"] = True
    if settings.language:
        header |= settings.language.to_header(DIGITS)
    if settings.dictionary:
        header["dictionary"] = settings.dictionary.identity[:DIGITS]
    if settings.window:
        header["window"] = settings.window >> _MIB
    return header


def from_header(header: container.Header, resources: Resources) -> Settings:
    """Return the settings for decompressing a stream.

    Args:
        header: of the stream.
        resources: dictionary, language model and limits.

    Raises:
        FormatError: if this version cannot decode it.
        ModelError: if `resources.model` is another one than the file needs.
        DictionaryError: if `resources.dictionary` is another one.
        DeviceError: if the device is missing.
        LimitError: if it takes too much memory.
    """
    return replace(_from_header(header, resources), short=header.short, limits=resources.limits)


def _from_header(header: container.Header, resources: Resources) -> Settings:
    fields = header.fields
    if header.names_content:
        dictionary = needed_dictionary(fields["dictionary"], resources, container.record_identity)
        return Settings(dictionary.row, resources.threads, dictionary=dictionary)
    if not fields:
        return Settings(None, resources.threads)
    fields, window = dict(fields), fields.get("window", 0)
    if type(window) is not int or not ("window" not in fields or 1 <= window <= 1 << container.MOST_WINDOW - _MIB):
        raise FormatError(_LACKS)
    fields.pop("window", None)
    return replace(_of_level(fields, header.short, resources), window=window << _MIB)


def _of_level(fields: dict[str, Any], short: bool, resources: Resources) -> Settings:
    number, bare = fields.get("level"), fields.get("bare", False)
    level = levels.LEVELS.get(number) if type(number) is int and "numerics" in fields else None
    if level is None or type(bare) is not bool or (level.text and bare):
        raise FormatError(_LACKS)
    others = set(fields) - {"level", "numerics", "bare"}
    if level.text is None:
        return _of_bytes(levels.bare(level) if bare else level, fields, others, resources)
    return _of_text(level, level.text, fields, others, resources, short)


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
        module.NamedModel.from_header(fields),
        resources.limits,
    )
    if resources.model is not None or resources.adapter is not None:
        _ = language.model  # raises before anything is decoded
    return Settings(level, resources.threads, language)


def _are_digits(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{DIGITS}}}", value) is not None
