"""The log of a work item: its lines in the log of the application that did it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from uuid import UUID

from sluice.launching.item_log import lines_of_item
from sluice.ledger.records.work import WorkObservation


def last_lines_of_item(seen: WorkObservation, *, limit: int) -> list[str]:
    """The last lines about an item; a line that says where the log lies when it is not on this host."""
    if seen.log_file is None:
        return ["no application has logged anything about this item yet"]
    log = Path(seen.log_file)
    if not log.exists():
        return [f"the log of this item is on another host: {log}"]
    with log.open(encoding="utf-8", errors="replace") as lines:
        own = lines_of_item((line.rstrip("\n") for line in lines), UUID(seen.item))
        return list(deque(own, maxlen=limit))
