"""The tree that is drawn in `sluice.errors` is the tree of its classes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sluice import errors
from sluice.errors import ERROR_CLASSES, SluiceError

LINE = re.compile(r"^(?P<branches>[│├└─ ]*)(?P<name>\w+Error)\b", re.MULTILINE)


def drawn_lines() -> list[str]:
    """The lines of the drawing without the descriptions."""
    assert errors.__doc__ is not None
    return [found.group() for found in LINE.finditer(errors.__doc__)]


def lines_below(error: type[SluiceError], indent: str = "") -> Iterator[str]:
    """The lines of the classes below one, in the order of their definition."""
    children = [each for each in ERROR_CLASSES.values() if error in each.__bases__]
    for child in children:
        is_last = child is children[-1]
        yield f"{indent}{'└── ' if is_last else '├── '}{child.__name__}"
        yield from lines_below(child, indent + ("    " if is_last else "│   "))


def test_the_drawing_shows_every_class_below_its_base() -> None:
    assert drawn_lines() == ["SluiceError", *lines_below(SluiceError)]


def test_every_class_of_the_tree_is_listed_by_its_name() -> None:
    assert all(error.__name__ == name for name, error in ERROR_CLASSES.items())
    assert set(ERROR_CLASSES.values()) == {
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)
    }
