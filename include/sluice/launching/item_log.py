"""The lines of one work item in the log of an application that does several at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MARK_CHARACTERS = 8
"""Of an item's id, in each line that is about it."""

_HEAD = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [A-Z]+ (?:\[([0-9a-f]{8})\] )?")


def item_lines(lines: Iterable[str], item: str) -> Iterator[str]:
    """Yield the lines about an item. A line without a time continues the one before it, as a stack trace does."""
    is_about_it = False
    for line in lines:
        if (head := _HEAD.match(line)) is not None:
            is_about_it = head[1] == item[:MARK_CHARACTERS]
        if is_about_it:
            yield line
