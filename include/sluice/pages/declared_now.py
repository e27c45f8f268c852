"""The declarations as they are now, for a process that lives long: loaded again when a file has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations

LOOK_SECONDS = 5.0
"""How old an answer may be. Looking at the files of 200 streams takes milliseconds; loading them takes a second."""

Signature = frozenset[tuple[str, int, int]]


@dataclass(slots=True)
class DeclaredNow:
    """The declarations of a folder. Safe to use from many threads; one of them loads.

    clock: seconds that only rise.
    """

    folder: Path
    clock: Callable[[], float] = time.monotonic
    _lock: Lock = field(default_factory=Lock)
    _signature: Signature | None = None
    _declarations: Declarations | None = None
    _looked_at: float = 0.0

    def read(self) -> Declarations:
        """The declarations, at most `LOOK_SECONDS` old."""
        with self._lock:
            known = self._declarations
            if known is not None and self.clock() - self._looked_at < LOOK_SECONDS:
                return known
            signature = frozenset(_files_below(self.folder))
            if known is None or signature != self._signature:
                known = load_declarations(self.folder)
            self._declarations, self._signature, self._looked_at = known, signature, self.clock()
            return known


def _files_below(folder: Path) -> list[tuple[str, int, int]]:
    """Every file with its time and size: code and schema files belong to a declaration as well."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118  # thousands of paths: `Path` takes ten times as long
            try:
                seen = os.stat(path)  # noqa: PTH116
            except OSError:
                continue
            found.append((path, seen.st_mtime_ns, seen.st_size))
    return found
