"""One command at a time may change a stack."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.errors import StackError
from sluice.stack.folder import StackFolder


@contextmanager
def exclusive(folder: StackFolder) -> Iterator[None]:
    """Hold the stack's lock. The kernel releases it when the process ends, however it ends.

    Parameters
    ----------
    folder: the stack's folder; it exists.

    Raises
    ------
    StackError: when another command holds it.
    """
    with folder.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise StackError(
                f"Another `sluice stack` command (pid {file.read().strip() or 'unknown'}) is changing this stack.",
                next_step="Wait until it ends, or stop it with Ctrl-C.",
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
