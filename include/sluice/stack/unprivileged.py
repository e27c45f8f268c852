"""Run a program that refuses to run as root, when this process is root: as an unprivileged user of the machine.

That user often cannot reach the program or its data, for example in a project below /root. Nothing is copied for that,
and no folder is opened to all users. Instead the process keeps one capability, to read and enter every folder, and is
an ordinary user otherwise. PostgreSQL checks its own file with access(2), which ignores capabilities unless the process
may keep them across a change of users: that is why the secure bit is set.
Source: capabilities(7), setpriv(1).
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import StackError

_USERS = ("postgres", "nobody")
"""The first that the machine has is used. No user is created, because the stack does not change the machine."""

_CAPABILITIES = ("dac_read_search", "dac_override")
"""The narrower one first; containers often have only the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprivilegedRun:
    """A way to run a program as an unprivileged user.

    Parameters
    ----------
    user: the user's name; empty when this process is not root, so that no change of users is needed.
    prefix: the words to put before the command line.
    """

    user: str = ""
    prefix: tuple[str, ...] = ()

    def give(self, path: Path) -> None:
        """Make the user the owner of a file or folder."""
        if self.user:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid)


def unprivileged_run(*, must_reach: Sequence[Path]) -> UnprivilegedRun:
    """Find a way that works on this machine, by trying each.

    Parameters
    ----------
    must_reach: programs that the user must be able to execute and folders that it must be able to enter.

    Raises
    ------
    StackError: when there is none.
    """
    if os.geteuid() != 0:
        return UnprivilegedRun()
    user = _existing_user()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError(
            "PostgreSQL refuses to run as root, and setpriv, which starts it as another user, is not installed.",
            next_step="Install util-linux, or run the stack as an ordinary user.",
        )
    for prefix in _prefixes(setpriv, user):
        if all(_works((*prefix, "test", "-x", str(path))) for path in must_reach):
            return UnprivilegedRun(user=user, prefix=prefix)
    raise StackError(
        f"PostgreSQL refuses to run as root, and the user {user} may not reach {must_reach[0]} or {must_reach[-1]}.",
        next_step="Run the stack as an ordinary user, or set SLUICE_DATA to a folder that every user may enter.",
    )


def _existing_user() -> str:
    for user in _USERS:
        try:
            pwd.getpwnam(user)
        except KeyError:
            continue
        return user
    raise StackError(
        f"PostgreSQL refuses to run as root, and this machine has no user {' or '.join(_USERS)}.",
        next_step="Run the stack as an ordinary user.",
    )


def _prefixes(setpriv: str, user: str) -> Iterator[tuple[str, ...]]:
    group = str(pwd.getpwnam(user).pw_gid)
    plain = (setpriv, f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs")
    yield (*plain, "--inh-caps=-all", "--bounding-set=-all")
    for capability in _CAPABILITIES:
        kept = f"-all,+{capability}"
        yield (
            *plain,
            "--securebits=+no_setuid_fixup",
            *(f"--{kind}={kept}" for kind in ("inh-caps", "ambient-caps", "bounding-set")),
        )


def _works(argv: Sequence[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False, timeout=10).returncode == 0  # noqa: S603  # own command
