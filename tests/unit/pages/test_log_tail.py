"""The end of a log: bounded, readable, and without secrets."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

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
    log = tmp_path / "clicks" / "log"
    log.parent.mkdir()
    log.write_bytes(b"\x1b[31mred\x1b[0m\x00\npassword=hunter2\nlast\xff\n")

    assert read_log_tail(a_run(log), logs=log.parent.parent) == LogTail(text="red\npassword=***\nlast\ufffd\n")


def test_a_long_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "clicks" / "log"
    log.parent.mkdir()
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))

    text = read_log_tail(a_run(log), logs=log.parent.parent).text

    assert len(text) <= SHOWN_LOG_BYTES
    assert text.startswith("line ")
    assert text.endswith("line 9999\n")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    missing = read_log_tail(a_run(tmp_path / "clicks" / "none"), logs=tmp_path)

    assert missing.text == ""
    assert "cannot be read from here: No such file" in missing.problem
    assert "Airflow keeps the log" in read_log_tail(a_run(None), logs=Path()).problem
    assert read_log_tail(None, logs=Path()).text == ""


def test_a_file_outside_of_the_streams_own_folder_is_not_read(tmp_path: Path) -> None:
    """Drivers write the ledger, and so the user's code does."""
    for folder in ("clicks", "orders"):
        (tmp_path / folder).mkdir()
    secret, link = tmp_path / "orders" / "passwords.json", tmp_path / "clicks" / "log"
    secret.write_text('{"admin": "S3cr3t-pw"}')
    (tmp_path / "clicks" / secret.name).write_text("a file of that name in the stream's own folder")
    link.symlink_to(secret)
    linked_folder = tmp_path / "clicks" / "folder"
    linked_folder.symlink_to(secret.parent)

    for file in (
        secret,
        link,
        tmp_path / "clicks" / ".." / "orders" / "passwords.json",
        linked_folder / "passwords.json",
    ):
        shown = read_log_tail(a_run(file), logs=tmp_path)
        assert (shown.text, "cannot be read from here: " in shown.problem) == ("", True)


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "clicks", tmp_path / "orders"
    for folder in (own, other):
        folder.mkdir()
        (folder / "log").write_text(f"of {folder.name}")
    opened = os.open

    def exchanged(path: Any, *flags: Any, **more: Any) -> int:
        if path == own:
            own.rename(tmp_path / "aside")
            own.symlink_to(other)
        return opened(path, *flags, **more)

    monkeypatch.setattr(os, "open", exchanged)
    shown = read_log_tail(a_run(own / "log"), logs=tmp_path)
    assert (shown.text, "cannot be read from here: " in shown.problem) == ("", True)
    assert own.is_symlink()


def test_a_pipe_in_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    """A page that waits for its writer would keep a thread of the API server for ever."""
    (tmp_path / "clicks").mkdir()
    os.mkfifo(tmp_path / "clicks" / "log")

    shown = read_log_tail(a_run(tmp_path / "clicks" / "log"), logs=tmp_path)

    assert (shown.text, "it is no regular file" in shown.problem) == ("", True)


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "log").write_text("S3cr3t-pw")
    (tmp_path / "clicks").symlink_to(tmp_path / "orders")

    assert read_log_tail(a_run(tmp_path / "clicks" / "log"), logs=tmp_path).text == ""
