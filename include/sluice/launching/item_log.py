"""The lines of one work item in the log of the application that ran it.

    2026-11-26T01:06:41Z WARNING [3f2b8c1d] the ledger does not answer; batch 7 waits

Lines of the application itself have no item. A line without a time, as those of a traceback, belongs to the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from uuid import UUID

_BEGINNING = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z [A-Z]+ (?:\[(?P<item>[0-9a-f]{8})\] )?")

_LABEL_DIGITS = 8
"""Of an item's 32 hexadecimal digits: two of a thousand items of a log have the same in one of 8,600 logs."""


def item_label(item: UUID) -> str:
    """What a log calls an item: the first digits of its id."""
    return item.hex[:_LABEL_DIGITS]


def lines_of_item(lines: Iterable[str], item: UUID) -> Iterator[str]:
    """The lines of a log that belong to an item, in their order.

    Parameters
    ----------
    lines: of the log, with or without their ends. A first line that continues an earlier one belongs to no item.
    """
    label, is_its_own = item_label(item), False
    for line in lines:
        if beginning := _BEGINNING.match(line):
            is_its_own = beginning["item"] == label
        if is_its_own:
            yield line
