"""The one regular expression that all texts of a sample meet, where they are built alike. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

_CLASSES = (("[A-Z]", "A", "Z"), ("[a-z]", "a", "z"), ("[0-9]", "0", "9"))

MOST_RUNS = 16
"""A text of more runs of one kind of character is prose, not a code."""


def pattern_of(texts: Iterable[str]) -> str:
    """The pattern of texts that have the same runs of capital letters, small letters, digits and other characters in
    the same order, such as `^[A-Z]{2}-[0-9]{1,4}$`; empty where they have not, and where nothing but one text is meant.

    Letters and digits are those of ASCII; of the other characters, each is that very character.
    """
    kinds: list[str] | None = None
    shortest: list[int] = []
    longest: list[int] = []
    for text in texts:
        runs = [(kind, sum(1 for _ in run)) for kind, run in groupby(map(_class_of, text))]
        lengths = [length for _, length in runs]
        if kinds is None:
            kinds, shortest, longest = [kind for kind, _ in runs], lengths, list(lengths)
        if [kind for kind, _ in runs] != kinds or len(runs) > MOST_RUNS:
            return ""
        shortest = list(map(min, shortest, lengths))
        longest = list(map(max, longest, lengths))
    if not kinds or not any(kind == name for kind in kinds for name, _, _ in _CLASSES):
        return ""
    runs_of_all = zip(kinds, shortest, longest, strict=True)
    return "^" + "".join(kind + _times(low, high) for kind, low, high in runs_of_all) + "$"


def _class_of(character: str) -> str:
    return next((name for name, first, last in _CLASSES if first <= character <= last), re.escape(character))


def _times(low: int, high: int) -> str:
    if low == high:
        return "" if low == 1 else f"{{{low}}}"
    return f"{{{low},{high}}}"
