"""What decides how the blocks of a stream are coded: chosen by a user here, or read from a header in header.py."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from squeeze.codecs.stream import levels, threads as sharing
from squeeze.codecs.stream.container import Content
from squeeze.codecs.stream.levels import Level, those_with_language_model
from squeeze.codecs.stream.resources import AUTO, NONE, LanguageOptions
from squeeze.codecs.stream.threads import Threads
from squeeze.errors import LevelError
from squeeze.system.limits import Limits

if TYPE_CHECKING:
    from squeeze.codecs.deep.learned import Start
    from squeeze.codecs.deep.presets import DeepPreset
    from squeeze.codecs.stream.dictionary import Dictionary
    from squeeze.codecs.stream.language import Language

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
        return sharing.allot(self.level, self.threads, self.language.at_once if self.language else 1)

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
        if not models.taught:
            return None
        from squeeze.codecs.stream import built_in  # start-up, as in levels.py

        return built_in.start(models)


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
    # Start-up: language models bring tokenizers and kernels of their own, which other levels do without.
    from squeeze.codecs.stream.language import choose_language

    return Settings(level, threads, choose_language(level.text, threads, options), dictionary)
