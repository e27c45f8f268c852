"""Install all prerequisites, side by side where possible, and skip what is installed already.

Java is installed with the system's package manager, when the user has the rights and agrees (decision 0090).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sluice.errors import PrerequisiteError
from sluice.setup.command_runner import CommandRunner, Progress
from sluice.setup.jars import JarLock, is_complete, ivy_jar, jars_folder, provide_jars, read_lock
from sluice.setup.java_runtime import JAVA_FOLDERS, JavaRuntime, JavaSearch, provide_class_archive, search_java
from sluice.setup.python_environment import (
    compile_packages,
    install_packages,
    is_environment_ready,
    provide_uv,
)

OPT_OUT_VARIABLE = "SLUICE_NO_INSTALL"
"""0: system packages are installed without a question. Another value: none is. Unset: a person at a terminal is asked,
and without a terminal root's process installs them, which has the rights already, and sudo is not used."""

INSTALLED_VERSIONS = (17, 21)
"""The versions of Java that are installed, the preferred one first; a distribution may have only one of them."""

PACKAGE_MANAGERS: Mapping[str, tuple[str, ...]] = {
    "apt-get": (
        "apt-get update --quiet",
        "apt-get install --yes --quiet --no-install-recommends -o DPkg::Lock::Timeout=120 openjdk-{}-jre-headless",
    ),
    "dnf": ("dnf install --assumeyes --quiet java-{}-openjdk-headless",),
    "zypper": ("zypper --non-interactive install java-{}-openjdk-headless",),
    "pacman": ("pacman --sync --refresh --noconfirm jre{}-openjdk-headless",),
}
"""For each package manager the commands that install a Java without a desktop, with `{}` in place of the version. They
are those of distributions with the GNU C library: DuckDB and the embedded PostgreSQL have no packages for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaInstallation:
    """The commands that install Java, or the reason why none may be run.

    Parameters
    ----------
    commands: for each version of Java, the commands that install it; empty when none may be run.
    obstacle: why none may be run, as half a sentence; empty when there are commands.
    needs_consent: whether a person is asked first.
    """

    commands: tuple[tuple[tuple[str, ...], ...], ...] = ()
    obstacle: str = ""
    needs_consent: bool = False

    @property
    def question(self) -> str:
        """What the person is asked."""
        return f"Java is missing. Install it with the rights of root: {' '.join(self.commands[0][-1])}? [y/N] "


def plan_java_installation(
    *,
    environment: Mapping[str, str],
    is_root: bool,
    has_sudo: bool,
    has_terminal: bool,
    find_program: Callable[[str], str | None],
) -> JavaInstallation:
    """Decide how Java can be installed on this machine.

    Parameters
    ----------
    environment: the environment variables; `SLUICE_NO_INSTALL` forbids the installation, or agrees to it.
    is_root: whether this process may install packages itself.
    has_sudo: whether sudo works without asking for a password.
    has_terminal: whether a person can be asked.
    find_program: the path of a program by its name, None when there is none, as `shutil.which` answers.
    """
    setting = environment.get(OPT_OUT_VARIABLE, "")
    if setting not in ("", "0"):
        return JavaInstallation(obstacle=f"{OPT_OUT_VARIABLE} forbids to install it")
    manager = next(filter(find_program, PACKAGE_MANAGERS), None)
    if manager is None:
        return JavaInstallation(
            obstacle=f"it cannot be installed here, since there is none of {', '.join(PACKAGE_MANAGERS)}"
        )
    if not is_root and not has_sudo:
        return JavaInstallation(
            obstacle="it cannot be installed by this user, who is not root and has no passwordless sudo"
        )
    if not is_root and not has_terminal and setting != "0":
        return JavaInstallation(
            obstacle=f"sudo would install it, and there is no terminal at which to ask ({OPT_OUT_VARIABLE}=0 agrees)"
        )
    privilege = () if is_root else ("sudo", "--non-interactive")
    commands = tuple(
        tuple((*privilege, *line.format(version).split()) for line in PACKAGE_MANAGERS[manager])
        for version in INSTALLED_VERSIONS
    )
    return JavaInstallation(commands=commands, needs_consent=has_terminal and setting != "0")


def install_java(plan: JavaInstallation, *, runner: CommandRunner, progress: Progress) -> None:
    """Install the first version that this distribution has.

    Raises
    ------
    PrerequisiteError: when none can be installed; the message holds the package manager's explanation.
    """
    explanation = ""
    for commands in plan.commands:
        progress.report(f"Installing Java: {' '.join(commands[-1])}")
        results = [
            runner.run(command, environment={"DEBIAN_FRONTEND": "noninteractive"}, is_stoppable=False)
            for command in commands
        ]
        if results[-1].is_success():
            return
        explanation = explanation or results[-1].explanation()
    raise PrerequisiteError(
        f"Java could not be installed: {explanation}",
        next_step="Install Java 17 by hand or set JAVA_HOME to one, then run the command again.",
    )


RECORD = Path(".sluice") / "bootstrap.json"
"""Where the bootstrap writes what it found, below the project's root: `java_home` and `jars`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Installs the prerequisites of one clone of the project.

    Parameters
    ----------
    root: the project's root.
    cache: Sluice's folder of the user's cache, shared by all clones.
    environment: the environment variables.
    runner: starts programs.
    progress: reports what is done.
    java_folders: folders that hold one folder for each Java.
    """

    root: Path
    cache: Path
    environment: Mapping[str, str]
    runner: CommandRunner
    progress: Progress
    java_folders: tuple[str, ...] = JAVA_FOLDERS

    def provide(self, *, has_class_archive: bool = True) -> None:
        """Install what is missing and write the record.

        Parameters
        ----------
        has_class_archive: whether the archive of Spark's classes is made when it is missing.

        Raises
        ------
        PrerequisiteError: when something is missing and cannot or may not be installed.
        """
        lock = read_lock(self.root)
        java = self._plan_java()  # before anything is made or downloaded for nothing
        self.cache.mkdir(parents=True, exist_ok=True)
        # Packages and archive are the clone's own. One clone waits for another only where both change the same.
        with _only_one(self.root / RECORD.parent / "setup.lock", of="this folder", progress=self.progress):
            with ThreadPoolExecutor(max_workers=1) as background:
                try:
                    found, jars = self._provide(lock, java=java, background=background)
                except BaseException:
                    self.runner.stop()  # otherwise leaving this block would wait for the programs that still run
                    raise
            if has_class_archive:
                provide_class_archive(self.root, java=found, jars=jars, runner=self.runner, progress=self.progress)
            self._record(java=found, jars=jars)
        self.progress.report(f"Ready: {found}, {len(lock.jars())} jars in {jars}")

    def _provide(
        self, lock: JarLock, *, java: JavaRuntime | JavaInstallation, background: ThreadPoolExecutor
    ) -> tuple[JavaRuntime, Path]:
        """Provide Java, the packages and the jars; the Java, and the folder of the jars."""
        installed = background.submit(self._install_java, java) if isinstance(java, JavaInstallation) else None
        compiled: Future[None] | None = None
        if not is_environment_ready(self.root):
            uv = provide_uv(self.root, cache=self.cache, progress=self.progress)
            self.progress.report("Installing the packages of uv.lock into .venv")
            install_packages(self.root, uv=uv, runner=self.runner)
            compiled = background.submit(compile_packages, self.root, uv=uv, runner=self.runner)
        found = java if isinstance(java, JavaRuntime) else cast(Future[JavaRuntime], installed).result()
        jars = self._provide_jars(lock, java=found)
        if compiled is not None:
            compiled.result()
        return found, jars

    def _provide_jars(self, lock: JarLock, *, java: JavaRuntime) -> Path:
        folder = jars_folder(lock, cache=self.cache)
        if is_complete(folder, lock=lock):
            return folder
        with self._only_clone():
            return provide_jars(
                lock, cache=self.cache, ivy=ivy_jar(self.root), java=java, runner=self.runner, progress=self.progress
            )

    def _only_clone(self) -> AbstractContextManager[None]:
        """Be the only clone that changes what all of this user's share."""
        return _only_one(self.cache / "lock", of="this machine", progress=self.progress)

    def _plan_java(self) -> JavaRuntime | JavaInstallation:
        """The Java that was found, or how it can be installed.

        Raises
        ------
        PrerequisiteError: when there is none, and none may be installed.
        """
        search = self._search_java()
        java = search.supported()
        if java is not None:
            return java
        has_sudo = shutil.which("sudo") is not None and self.runner.run(["sudo", "-n", "true"]).is_success()
        plan = plan_java_installation(
            environment=self.environment,
            is_root=os.geteuid() == 0,
            has_sudo=has_sudo,
            has_terminal=self.progress.has_terminal(),
            find_program=shutil.which,
        )
        if plan.obstacle:
            raise search.missing(plan.obstacle)
        if plan.needs_consent and not self.progress.ask(plan.question):
            raise search.missing("you did not agree to install it")
        return plan

    def _install_java(self, plan: JavaInstallation) -> JavaRuntime:
        with self._only_clone():
            search = self._search_java()
            if (java := search.supported()) is not None:  # another clone has installed it meanwhile
                return java
            install_java(plan, runner=self.runner, progress=self.progress)
        search = self._search_java()
        java = search.supported()
        if java is None:
            raise search.missing("the one that the package manager installed was not found")
        return java

    def _search_java(self) -> JavaSearch:
        return search_java(environment=self.environment, runner=self.runner, folders=self.java_folders)

    def _record(self, *, java: JavaRuntime, jars: Path) -> None:
        record = self.root / RECORD
        record.parent.mkdir(mode=0o700, exist_ok=True)
        partial = record.with_suffix(f".partial-{os.getpid()}")
        partial.write_text(json.dumps({"java_home": str(java.home), "jars": str(jars)}, indent=2) + "\n")
        partial.replace(record)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Sluice's folder of the user's cache.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "sluice"


@contextmanager
def _only_one(file: Path, *, of: str, progress: Progress) -> Iterator[None]:
    """Hold a lock on what several bootstraps may want to change."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.report(f"Waiting for another bootstrap of {of}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
