"""Install Java with the system's package manager, when the user has the rights and has not forbidden it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sluice.errors import PrerequisiteError
from sluice.setup.command_runner import CommandRunner
from sluice.setup.setup_progress import Progress

OPT_OUT_VARIABLE = "SLUICE_NO_INSTALL"
"""When it is set to anything but 0 or nothing, the bootstrap installs no system packages."""

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
    environment: the environment variables; `SLUICE_NO_INSTALL` forbids the installation.
    is_root: whether this process may install packages itself.
    has_sudo: whether sudo works without asking for a password.
    find_program: the path of a program by its name, None when there is none, as `shutil.which` answers.
    """
    if environment.get(OPT_OUT_VARIABLE, "") not in ("", "0"):
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
    privilege = () if is_root else ("sudo", "--non-interactive")
    commands = tuple(
        tuple((*privilege, *line.format(version).split()) for line in PACKAGE_MANAGERS[manager])
        for version in INSTALLED_VERSIONS
    )
    return JavaInstallation(commands=commands)


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
