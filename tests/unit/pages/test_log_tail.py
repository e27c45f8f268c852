"""The end of a log: bounded, readable, and without secrets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.pages.stream_page import SHOWN_LOG_BYTES, LogTail, read_log_tail


def a_run(log_file: Path | None) -> RunObservation:
    """A run with this log."""
    return RunObservation(
        run_id="r",
        stream="clicks",
        token=1,
        generation=1,
        mode="continuous",
        state=RunState.RUNNING,
        desired_state=DesiredState.RUNNING,
        launched_at=datetime(2026, 11, 22, tzinfo=UTC),
        launched_by="a test",
        declaration_digest="d",
        log_file=log_file,
    )


def test_the_end_of_a_log_is_shown_without_secrets_and_controls(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\x1b[31mred\x1b[0m\x00\npassword=hunter2\nlast\xff\n")

    assert read_log_tail(a_run(log)) == LogTail(text="red\npassword=***\nlast\ufffd\n")


def test_a_long_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))

    text = read_log_tail(a_run(log)).text

    assert len(text) <= SHOWN_LOG_BYTES
    assert text.startswith("line ")
    assert text.endswith("line 9999\n")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    missing = read_log_tail(a_run(tmp_path / "none"))

    assert missing.text == ""
    assert "cannot be read from here: No such file" in missing.problem
    assert "Airflow keeps the log" in read_log_tail(a_run(None)).problem
    assert read_log_tail(None).text == ""
