"""Looks of the pages at the catalog and the object store, bounded in time and in number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import TypeVar

from sluice.errors import LakehouseError
from sluice.processes.deadline import Deadline
from sluice.processes.worker_threads import NotDone, run_each

MOST_LOOKS = 4
"""How many looks of a kind one API server has at a time; a catalog that hangs holds no more of its threads."""

LOOK_SECONDS = 10.0
"""How long a person waits for the catalog and the object store; a look takes about a second at most."""

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedLooks:
    """Looks of one kind in one process. Safe to use from many threads.

    at: what is looked at, in the plural, for messages. seconds: how long a look may take.
    """

    at: str
    seconds: float = LOOK_SECONDS
    _places: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(MOST_LOOKS))

    def look(self, read: Callable[[Deadline], Seen]) -> Seen:
        """Read in a thread of its own, which is left behind when its time is over.

        Raises
        ------
        LakehouseError: when there is no answer in time, or as many looks as are allowed wait for one; and what `read`
            raises.
        """
        deadline = Deadline.after(self.seconds)
        seen = run_each({"look": lambda: self._read(read, deadline)}, at_once=1, deadline=deadline)["look"]
        if isinstance(seen, NotDone):
            raise LakehouseError(
                f"The catalog and the object store have not answered within {self.seconds:g} seconds.",
                next_step="See that they run (`sluice stack status` locally), then try again.",
            )
        if isinstance(seen, Exception):
            raise seen
        return seen

    def _read(self, read: Callable[[Deadline], Seen], deadline: Deadline) -> Seen:
        if not self._places.acquire(blocking=False):
            raise LakehouseError(
                f"{MOST_LOOKS} other looks at {self.at} have not ended yet.", next_step="Try again in a minute."
            )
        try:
            return read(deadline)
        finally:
            self._places.release()
