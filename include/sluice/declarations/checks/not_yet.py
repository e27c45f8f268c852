"""What a declaration can say and this version cannot do: refused with a reason, never ignored.

The models hold the whole design, so that a declaration keeps its form when a part begins to work: then its line goes
from this table, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.declarations.declaration_files import Document, KeyPath
from sluice.declarations.error_messages import key_text
from sluice.errors import NotYetError


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYetPart:
    """A key that is refused.

    path: the key; `*` stands for any name. reason: why it does not work. instead: what works.
    works: the values of the key that do work; none for most.
    """

    path: str
    reason: str
    instead: str = "Leave it out."
    works: tuple[str | bool, ...] = ()


_ICEBERG_ONLY = "Write into an Iceberg table."

NOT_YET: tuple[NotYetPart, ...] = (
    # outputs
    NotYetPart(path="outputs.*.hudi", reason="no Hudi bundle exists for Spark 4", instead=_ICEBERG_ONLY),
)


@dataclass(slots=True)
class _Branch:
    """The table as a tree, so that a walk over a declaration only follows keys that the table knows."""

    below: dict[str, _Branch]
    part: NotYetPart | None = None


def _grow(parts: tuple[NotYetPart, ...]) -> _Branch:
    root = _Branch({})
    for part in parts:
        branch = root
        for key in part.path.split("."):
            branch = branch.below.setdefault(key, _Branch({}))
        branch.part = part
    return root


_ROOT = _grow(NOT_YET)


def refused_parts(document: Document) -> Iterator[NotYetError]:
    """The parts that a file asks for and that do not work, each with its line."""
    for path, part, value in _asked_for(document.content, _ROOT, ()):
        if part.works:
            working = ", ".join(f"`{_yaml(one)}`" for one in part.works)
            verb = "works" if len(part.works) == 1 else "work"
            sentence = f"`{key_text(path)}`: {_yaml(value)} does not work yet: {part.reason}; {working} {verb}."
        else:
            sentence = f"`{key_text(path)}` does not work yet: {part.reason}."
        yield NotYetError(sentence, location=document.location(path), next_step=part.instead)


def _asked_for(value: object, branch: _Branch, path: KeyPath) -> Iterator[tuple[KeyPath, NotYetPart, Any]]:
    if branch.part is not None and value is not None and value not in branch.part.works:
        yield path, branch.part, value
    entries = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    if branch.below:
        for key, inner in entries:
            below = branch.below.get(str(key)) or branch.below.get("*")
            if below is not None:
                yield from _asked_for(inner, below, (*path, key))


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "this" if isinstance(value, Mapping | list) else str(value)
