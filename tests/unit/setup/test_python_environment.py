"""The pinned uv and the stamp of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import PrerequisiteError
from sluice.setup.python_environment import (
    UvWheel,
    choose_uv_wheel,
    environment_stamp,
    is_environment_ready,
    supported_pythons,
)

ROOT = Path(__file__).resolve().parents[3]

LOCK = """
[[package]]
name = "other"
version = "1"

[[package]]
name = "uv"
version = "9.9.9"
wheels = [
    { url = "https://files.example/uv-9-py3-none-macosx_11_0_arm64.whl", hash = "sha256:aa" },
    { url = "https://files.example/uv-9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", hash = "sha256:bb" },
    { url = "https://files.example/uv-9-py3-none-musllinux_1_1_x86_64.whl", hash = "sha256:cc" },
    { url = "https://files.example/uv-9-py3-none-manylinux_2_28_aarch64.whl", hash = "sha256:dd" },
]
"""


@pytest.mark.parametrize(("machine", "sha256"), [("x86_64", "bb"), ("aarch64", "dd")])
def test_wheel_of_the_machine_is_chosen(machine: str, sha256: str) -> None:
    wheel = choose_uv_wheel(LOCK, machine=machine)

    assert (wheel.version, wheel.sha256) == ("9.9.9", sha256)


@pytest.mark.parametrize("machine", ["riscv64", "x86_64 without glibc", "arm64"])
def test_machine_without_a_wheel_is_named(machine: str) -> None:
    with pytest.raises(PrerequisiteError, match=f"uv.lock has no uv for Linux on {machine} with the GNU C library"):
        choose_uv_wheel(LOCK, machine=machine)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_real_lock_has_uv(machine: str) -> None:
    wheel = choose_uv_wheel((ROOT / "uv.lock").read_text(), machine=machine)

    assert isinstance(wheel, UvWheel)
    assert len(wheel.sha256) == 64


def test_bounds_of_python_are_read() -> None:
    assert supported_pythons('[project]\nrequires-python = ">=3.11,<3.14"\n') == ((3, 11), (3, 14))


def project(root: Path) -> Path:
    """A project whose environment is ready."""
    root.mkdir(exist_ok=True)
    (root / "pyproject.toml").write_text("[project]")
    (root / "uv.lock").write_text("version = 1")
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").touch()
    (root / ".venv" / "sluice-stamp").write_text(environment_stamp(root))
    return root


def test_environment_is_ready_until_something_changes(tmp_path: Path) -> None:
    root = project(tmp_path)
    assert is_environment_ready(root)

    (root / "uv.lock").write_text("version = 2")
    assert not is_environment_ready(root)


@pytest.mark.parametrize("missing", ["bin/python", "sluice-stamp"])
def test_half_made_environment_is_not_ready(tmp_path: Path, missing: str) -> None:
    root = project(tmp_path)
    (root / ".venv" / missing).unlink()

    assert not is_environment_ready(root)


def test_moved_project_is_not_ready(tmp_path: Path) -> None:
    after = project(tmp_path / "before").rename(tmp_path / "after")

    assert not is_environment_ready(after)
