"""Rotating a log while a driver appends to it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from sluice.processes.driver_watch import COPIES, rotate_if_full


def copies(log_file: Path) -> dict[str, str]:
    """The files in the folder of a log, by name."""
    return {path.name: path.read_text() for path in sorted(log_file.parent.iterdir())}


def test_a_full_log_is_copied_and_its_writer_goes_on_in_the_truncated_one(tmp_path: Path) -> None:
    log_file = tmp_path / "run.log"
    with log_file.open("a") as driver:  # as the launcher opens it: appending
        driver.write("first " * 10)
        driver.flush()
        assert not rotate_if_full(log_file, largest_bytes=61)
        assert rotate_if_full(log_file, largest_bytes=60)
        driver.write("second")
        driver.flush()
    assert copies(log_file) == {"run.log": "second", "run.log.1": "first " * 10}


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    log_file = tmp_path / "run.log"
    for number in range(COPIES + 3):
        log_file.write_text(str(number))
        assert rotate_if_full(log_file, largest_bytes=1)
    assert copies(log_file) == {"run.log": "", "run.log.1": "5", "run.log.2": "4", "run.log.3": "3"}


def test_on_a_full_disk_a_log_is_cut_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy would take the last of the disk, and the log would grow for ever."""
    log_file = tmp_path / "run.log"
    log_file.write_text("first")
    assert rotate_if_full(log_file, largest_bytes=1)
    log_file.write_text("second")

    def full(source: Path, target: Path, **_: bool) -> None:
        target.write_bytes(source.read_bytes()[:1])
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    assert rotate_if_full(log_file, largest_bytes=1)
    assert copies(log_file) == {"run.log": "", "run.log.1": "first"}, "the draft is gone, and the older copy stays"


def test_a_copy_that_fails_otherwise_leaves_the_log_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_file = tmp_path / "run.log"
    log_file.write_text("first")

    def refuse(source: Path, target: Path, **_: bool) -> None:
        raise PermissionError(errno.EACCES, f"{source} to {target}")

    monkeypatch.setattr(shutil, "copyfile", refuse)
    with pytest.raises(PermissionError):
        rotate_if_full(log_file, largest_bytes=1)
    assert copies(log_file) == {"run.log": "first"}
