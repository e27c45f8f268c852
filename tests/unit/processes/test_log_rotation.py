"""Rotating a log while a driver appends to it."""

from __future__ import annotations

from pathlib import Path

from sluice.processes.log_rotation import COPIES, rotate_if_full


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
