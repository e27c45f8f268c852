"""A Spark session for each thread of an application: what one thread names or sets, no other sees."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from sluice.declarations.engine_declaration import StateDeclaration
from sluice_spark.session.session import another_session


@dataclass(slots=True)
class ThreadSessions:
    """Opens a session when a thread first calls this; the first one starts Spark.

    open_first: opens the session that starts Spark. state: the declared state of the stream.
    """

    open_first: Callable[[], SparkSession]
    state: StateDeclaration
    _first: SparkSession | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock)
    _of_thread: threading.local = field(default_factory=threading.local)

    def __call__(self) -> SparkSession:
        """The session of this thread."""
        known: SparkSession | None = getattr(self._of_thread, "session", None)
        if known is None:
            with self._opening:
                known = another_session(self._first, self.state) if self._first is not None else self.open_first()
                self._first = self._first or known
            self._of_thread.session = known
        return known
