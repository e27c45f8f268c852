"""Install Java through the system's package manager, where the person may do that and has not forbidden it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sluice.errors import PrerequisiteError
from sluice.setup.command_runner import CommandRunner
from sluice.setup.setup_progress import Progress

OPT_OUT_VARIABLE = "SLUICE_NO_INSTALL"
"""Set to anything but 0 or nothing, it keeps the bootstrap from installing system packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageManager:
    """How one family of distributions installs a package.

    Parameters
    ----------
    program: the package manager's name.
    refresh: the arguments that fetch the list of packages, empty when installing does it by itself.
    install: the arguments that install, before the package's name.
    java_packages: the packages that bring a supported Java without a desktop, the preferred one first.
    """

    program: str
    refresh: tuple[str, ...] = ()
    install: tuple[str, ...]
    java_packages: tuple[str, ...]


PACKAGE_MANAGERS = (
    PackageManager(
        program="apt-get",
        refresh=("update", "--quiet"),
        install=("install", "--yes", "--quiet", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"),
        java_packages=("openjdk-17-jre-headless", "openjdk-21-jre-headless"),
    ),
    PackageManager(
        program="dnf",
        install=("install", "--assumeyes", "--quiet"),
        java_packages=("java-17-openjdk-headless", "java-21-openjdk-headless"),
    ),
    PackageManager(
        program="zypper",
        install=("--non-interactive", "install"),
        java_packages=("java-17-openjdk-headless", "java-21-openjdk-headless"),
    ),
    PackageManager(
        program="pacman",
        install=("--sync", "--refresh", "--noconfirm"),
        java_packages=("jre17-openjdk-headless", "jre21-openjdk-headless"),
    ),
)
"""Distributions with the GNU C library only: DuckDB and the embedded PostgreSQL have no packages for another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaInstallation:
    """What would be run to get Java, or why nothing may be run.

    Parameters
    ----------
    commands: for each package that may bring Java, the commands that install it; empty when nothing may be run.
    obstacle: why nothing may be run, as half a sentence; empty when there are commands.
    """

    commands: tuple[tuple[tuple[str, ...], ...], ...] = ()
    obstacle: str = ""


def plan_java_installation(
    *,
    environment: Mapping[str, str],
    is_root: bool,
    has_sudo: bool,
    find_program: Callable[[str], str | None],
) -> JavaInstallation:
    """Decide how Java can be installed on this machine.

    Parameters
    ----------
    environment: the environment variables; `SLUICE_NO_INSTALL` forbids everything.
    is_root: whether this process may install packages itself.
    has_sudo: whether sudo works without asking for a password.
    find_program: the path of a program by its name, None when there is none, as `shutil.which` answers.
    """
    if environment.get(OPT_OUT_VARIABLE, "") not in ("", "0"):
        return JavaInstallation(obstacle=f"{OPT_OUT_VARIABLE} forbids to install it")
    manager = next((manager for manager in PACKAGE_MANAGERS if find_program(manager.program)), None)
    if manager is None:
        known = ", ".join(manager.program for manager in PACKAGE_MANAGERS)
        return JavaInstallation(obstacle=f"it cannot be installed here, since there is none of {known}")
    if not is_root and not has_sudo:
        return JavaInstallation(
            obstacle="it cannot be installed by this user, who is not root and has no passwordless sudo"
        )
    privilege = () if is_root else ("sudo", "--non-interactive")
    refresh = ((*privilege, manager.program, *manager.refresh),) if manager.refresh else ()
    return JavaInstallation(
        commands=tuple(
            (*refresh, (*privilege, manager.program, *manager.install, package)) for package in manager.java_packages
        )
    )


def install_java(plan: JavaInstallation, *, runner: CommandRunner, progress: Progress) -> None:
    """Install the first package that this distribution has.

    Raises
    ------
    PrerequisiteError: when none can be installed; the package manager's own words are in the message.
    """
    explanation = ""
    for commands in plan.commands:
        progress.tell(f"Installing Java: {' '.join(commands[-1])}")
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
