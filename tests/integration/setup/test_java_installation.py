"""Whether and how Java is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sluice.errors import PrerequisiteError
from sluice.setup.command_runner import CommandRunner, Progress
from sluice.setup.installation import JavaInstallation, install_java, plan_java_installation


def plan(
    *programs: str,
    environment: Mapping[str, str] | None = None,
    is_root: bool = True,
    has_sudo: bool = False,
    has_terminal: bool = True,
) -> JavaInstallation:
    """The plan on a machine with these programs."""
    return plan_java_installation(
        environment=environment or {},
        is_root=is_root,
        has_sudo=has_sudo,
        has_terminal=has_terminal,
        find_program=lambda name: f"/usr/bin/{name}" if name in programs else None,
    )


def test_debian_refreshes_its_list_before_it_installs() -> None:
    first, second = plan("apt-get").commands

    assert [command[:2] for command in first] == [("apt-get", "update"), ("apt-get", "install")]
    assert (first[-1][-1], second[-1][-1]) == ("openjdk-17-jre-headless", "openjdk-21-jre-headless")


def test_fedora_installs_at_once() -> None:
    assert plan("dnf").commands[0] == (("dnf", "install", "--assumeyes", "--quiet", "java-17-openjdk-headless"),)


def test_without_root_sudo_is_used_and_never_asks() -> None:
    commands = plan("apt-get", is_root=False, has_sudo=True).commands[0]

    assert {command[:2] for command in commands} == {("sudo", "--non-interactive")}


@pytest.mark.parametrize(
    ("installation", "obstacle"),
    [
        (plan("apt-get", environment={"SLUICE_NO_INSTALL": "1"}), "SLUICE_NO_INSTALL forbids to install it"),
        (
            plan("apt-get", is_root=False),
            "it cannot be installed by this user, who is not root and has no passwordless",
        ),
        (plan(), "it cannot be installed here, since there is none of apt-get, dnf, zypper, pacman"),
    ],
)
def test_obstacles_are_named_and_nothing_is_run(installation: JavaInstallation, obstacle: str) -> None:
    assert installation.commands == ()
    assert installation.obstacle.startswith(obstacle)


@pytest.mark.parametrize(
    ("value", "is_root", "has_terminal", "is_asked"),
    [
        ("", True, True, True),
        ("", False, True, True),
        ("", True, False, False),
        ("0", True, True, False),
        ("0", False, True, False),
        ("0", False, False, False),
    ],
)
def test_a_person_at_a_terminal_is_asked_unless_they_have_agreed(
    value: str, is_root: bool, has_terminal: bool, is_asked: bool
) -> None:
    environment = {"SLUICE_NO_INSTALL": value}
    planned = plan("apt-get", environment=environment, is_root=is_root, has_sudo=True, has_terminal=has_terminal)
    assert (bool(planned.commands), planned.needs_consent) == (True, is_asked)
    assert planned.question.endswith(
        "apt-get install --yes --quiet --no-install-recommends -o "
        "DPkg::Lock::Timeout=120 openjdk-17-jre-headless? [y/N] "
    )


def test_sudo_is_not_used_where_there_is_nobody_to_ask() -> None:
    refused = plan("apt-get", is_root=False, has_sudo=True, has_terminal=False)
    assert refused.commands == ()
    assert "SLUICE_NO_INSTALL=0 agrees" in refused.obstacle


@pytest.mark.parametrize("value", ["", "0"])
def test_empty_and_zero_do_not_opt_out(value: str) -> None:
    assert plan("apt-get", environment={"SLUICE_NO_INSTALL": value}).commands


def test_next_package_is_tried_when_the_first_is_unknown(tmp_path: Path) -> None:
    done = tmp_path / "done"
    installation = JavaInstallation(
        commands=((("sh", "-c", "echo E: no such package; exit 100"),), (("touch", str(done)),))
    )

    install_java(installation, runner=CommandRunner(), progress=Progress())

    assert done.exists()


def test_first_failure_is_in_the_message_when_none_can_be_installed() -> None:
    installation = JavaInstallation(
        commands=((("sh", "-c", "echo Reading; echo E: no network; exit 100"),), (("sh", "-c", "echo E: x; exit 1"),))
    )

    with pytest.raises(PrerequisiteError, match="Java could not be installed: E: no network Install Java 17"):
        install_java(installation, runner=CommandRunner(), progress=Progress())
