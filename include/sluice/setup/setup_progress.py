"""The progress that the bootstrap prints, and what it asks."""

from __future__ import annotations

import sys
import threading
import time


class Progress:
    """Prints one line for each step, with the seconds since the bootstrap began."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def elapsed_seconds(self) -> float:
        """The seconds since the bootstrap began."""
        return time.monotonic() - self._began

    @staticmethod
    def has_terminal() -> bool:
        """Whether a person reads what is printed, and can answer."""
        return sys.stdin.isatty() and sys.stdout.isatty()

    @staticmethod
    def ask(question: str) -> bool:
        """Ask a person, who agrees with `y` alone."""
        sys.stdout.write(question)
        sys.stdout.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def report(self, line: str) -> None:
        """Print one line. Several threads may call it at a time."""
        with self._lock:
            sys.stdout.write(f"[{self.elapsed_seconds():5.1f} s] {line}\n")
            sys.stdout.flush()
