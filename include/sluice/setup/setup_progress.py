"""What the bootstrap tells the person who waits for it."""

from __future__ import annotations

import sys
import threading
import time


class Progress:
    """Writes one line for each step to stdout, with the seconds since the bootstrap began."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def elapsed_seconds(self) -> float:
        """The seconds since the bootstrap began."""
        return time.monotonic() - self._began

    def tell(self, line: str) -> None:
        """Write one line; safe to call from several threads."""
        with self._lock:
            sys.stdout.write(f"[{self.elapsed_seconds():5.1f} s] {line}\n")
            sys.stdout.flush()
