"""Reads the files of declarations within bounds, and YAML with the line of every key, so that an error points at it.

Nothing is read that could keep a reader waiting or fill its memory. A declaration is data: no aliases, no tags, no
duplicate keys, one document. Scalars follow the YAML 1.2 core schema, so `no`, `on` and `12:30` are text and only
`true` and `false` are booleans. Source: https://yaml.org/spec/1.2.2/#103-core-schema
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from yaml import CBaseLoader, MarkedYAMLError, YAMLError
from yaml.events import (
    AliasEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from sluice.errors import DeclarationError
from sluice.messages import Location, one_line, unshowable_character

LARGEST_CODE_BYTES = 4 * 1024**2
"""Of a file with a transformation, or a query."""


class UnreadableFileError(ValueError):
    """A file that is not read; its text says why, and the file is `it`."""


def read_bounded(file: Path, *, most_bytes: int) -> bytes:
    """The bytes of a regular file, or of one that a link leads to.

    A queue, a device or a socket is refused before it is opened: opening it could wait for ever, or do something.

    Parameters
    ----------
    most_bytes: the size beyond which the file is refused.

    Raises
    ------
    UnreadableFileError: when it cannot be read, is no regular file, or is too large.
    """
    try:
        _require_regular(file.stat())
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            status = os.fstat(descriptor)
            _require_regular(status)  # it may have been exchanged since
            content = opened.read(min(status.st_size, most_bytes) + 1)  # and no buffer of the size that is allowed
            if len(content) > status.st_size:  # it grows
                content += opened.read(most_bytes + 1 - len(content))
    except (OSError, ValueError) as error:
        if isinstance(error, UnreadableFileError):
            raise
        raise UnreadableFileError(f"it cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > most_bytes:
        raise UnreadableFileError(f"it is larger than {most_bytes} bytes")
    return content


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UnreadableFileError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFileError("it is no regular file but a queue, a device or a socket")


KeyPath: TypeAlias = tuple[str | int, ...]
"""The way from the top of a document to a value: keys of mappings and indices of lists."""

DEEPEST_NESTING = 50
"""Far above what a declaration needs, far below what would exhaust the interpreter's stack."""

LONGEST_KEY = 256
"""The characters of a key: names are shorter, and every message about a value repeats its keys."""

_WORDS: Mapping[str, object] = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBER_BEGINS = frozenset("+-0123456789")
_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?[0-9]{1,30}\.[0-9]{0,30}(?:[eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML file as plain values, and where each of them stands.

    text: the file's bytes, from which the lines are read when one is asked for: of most files none is.
    """

    file: Path
    content: Mapping[str | int, Any]
    text: bytes

    @property
    def lines(self) -> Mapping[KeyPath, int]:
        """The 1-based line of the key (or list item) at each path; the empty path is the document itself."""
        return _lines_of(self.text)

    def location(self, path: KeyPath = ()) -> Location:
        """Where the key at `path` was written; of a key that is missing, where its nearest parent was."""
        lines = self.lines
        while path not in lines:
            path = path[:-1]
        return Location(file=self.file, line=lines[path])

    def value(self, path: KeyPath) -> object:
        """What was written at `path`; nothing when nothing was."""
        value: Any = self.content if path in self.lines else None
        for key in path if value is not None else ():
            value = value[key]
        return value


def read_document(text: bytes, *, file: Path) -> Document:
    """Read one YAML document.

    Parameters
    ----------
    text: the file's bytes.
    file: the file's name, for errors.

    Raises
    ------
    DeclarationError: when it is not YAML, or uses what a declaration has no use for; knows the line.
    """
    try:
        return _Reading(text, file=file).document()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DeclarationError(
            f"this is not YAML: {error.problem or error.context}.",
            # At the end of a file libyaml's mark is a line that does not exist.
            location=Location(file=file, line=min(mark.line + 1, len(text.splitlines())) if mark else 1),
            next_step="Correct the line, or quote the value.",
        ) from error
    except YAMLError as error:
        raise DeclarationError(
            f"this is not YAML: {str(error).splitlines()[0]}.",
            location=Location(file=file, line=1),
            next_step="Save the file as UTF-8 text without control characters.",
        ) from error


class _Reading:
    """One walk over the events of libyaml's parser.

    Events, because libyaml's own tree of nodes is built by recursion in C: deep nesting would end the whole process.
    """

    def __init__(self, text: bytes, *, file: Path) -> None:
        self._next = _events(text)
        self._text = text
        self._file = file

    def document(self) -> Document:
        self._next()  # the start of the stream
        if isinstance(self._next(), StreamEndEvent):
            raise DeclarationError("the file is empty.", location=Location(file=self._file, line=1))
        root = self._next()
        content = self._value(root, 0)
        if not isinstance(content, dict):
            kind = "a list" if isinstance(content, list) else "a single value"
            raise self._refusal(root, f"a declaration is a mapping of keys to values, got {kind}.")
        self._next()  # the end of the document
        if not isinstance(another := self._next(), StreamEndEvent):
            raise self._refusal(another, "a second document begins here.", "Keep one document in a file.")
        return Document(file=self._file, content=content, text=self._text)

    def _value(self, event: Event, depth: int) -> object:
        if depth > DEEPEST_NESTING:
            raise self._refusal(event, f"values are nested deeper than {DEEPEST_NESTING} levels.")
        if isinstance(event, ScalarEvent):
            return self._scalar(event)
        if isinstance(event, AliasEvent):
            anchor = one_line(str(event.anchor))
            raise self._refusal(event, f"the alias `*{anchor}` is not allowed.", "Write the value out.")
        self._require_no_tag(event)
        return self._mapping(depth + 1) if isinstance(event, MappingStartEvent) else self._sequence(depth + 1)

    def _scalar(self, event: ScalarEvent) -> object:
        if event.tag is not None:
            self._require_no_tag(event)
        if (character := unshowable_character(event.value)) is not None:
            raise self._refusal(
                event,
                f"the text that begins here holds {character}, a character that no table, page or terminal shows.",
                "Remove it.",
            )
        return _scalar_value(event)

    def _sequence(self, depth: int) -> list[object]:
        values: list[object] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            values.append(self._value(event, depth))
        return values

    def _mapping(self, depth: int) -> dict[str | int, object]:
        values: dict[str | int, object] = {}
        lines: dict[str | int, int] = {}
        following = self._next
        while not isinstance(event := following(), MappingEndEvent):
            key = self._scalar(event) if isinstance(event, ScalarEvent) else None
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise self._refusal(event, "a key is a word or a whole number.", "Quote the key if it is text.")
            if isinstance(key, str) and (len(key) > LONGEST_KEY or one_line(key) != key):
                raise self._refusal(event, f"a key is one line of at most {LONGEST_KEY} characters.")
            if key in values:
                twice = f"the key `{key}` is written twice, first in line {lines[key]}."
                raise self._refusal(event, twice, "Keep one of the two.")
            lines[key] = _line(event)
            values[key] = self._value(following(), depth)
        return values

    def _require_no_tag(self, event: Event) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise self._refusal(event, f"the tag {one_line(str(tag))} is not allowed.", "Write a plain value.")

    def _refusal(self, event: Event, problem: str, next_step: str = "") -> DeclarationError:
        return DeclarationError(problem, location=Location(file=self._file, line=_line(event)), next_step=next_step)


def _events(text: bytes) -> Callable[[], Event]:
    """Each call gives the next event of a document."""
    return CBaseLoader(text).get_event  # type: ignore[return-value]  # none only after the stream's end


@lru_cache(maxsize=8)
def _lines_of(text: bytes) -> Mapping[KeyPath, int]:
    """The line of every key and list item of a document that was read."""
    lines: dict[KeyPath, int] = {(): 1}
    following = _events(text)
    for _ in range(2):  # the start of the stream, and that of the document
        following()

    def note(event: Event, path: KeyPath) -> None:
        if isinstance(event, MappingStartEvent):
            while isinstance(key := following(), ScalarEvent):
                place = (*path, _scalar_value(key))
                lines[place] = _line(key)
                note(following(), place)
        elif isinstance(event, SequenceStartEvent):
            number = 0
            while not isinstance(item := following(), SequenceEndEvent):
                place = (*path, number)
                lines[place] = _line(item)
                note(item, place)
                number += 1

    if text:
        note(following(), ())
    return lines


def _scalar_value(event: ScalarEvent) -> Any:
    """What a scalar means: a quoted one is text."""
    return _plain_value(event.value) if event.implicit[0] else event.value


def _line(event: Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1


def _plain_value(text: str) -> object:
    """What an unquoted scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in _NUMBER_BEGINS:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text
