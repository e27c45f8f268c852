"""What a stack keeps on disk, and the checks before it starts."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import astuple, fields
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sluice.errors import StackError
from sluice.processes.deadline import wait_until
from sluice.stack.credentials import Credentials, ensure_credentials, generate_credentials, read_credentials
from sluice.stack.folder import StackFolder, check_disk, exclusive, stack_folder, write_private
from sluice.stack.stack_plan import Command
from sluice.stack.stack_records import (
    ProcessRecord,
    fingerprint,
    read_records,
    read_selection,
    remove_record,
    write_record,
    write_selection,
)
from sluice.stack.stack_status import LiveDisplay, PlainDisplay, follow_log, last_line, last_lines
from sluice.stack.starting import exit_code, start_process

RECORD = ProcessRecord(
    service="kafka", pid=42, start_ticks=7, started_at="2026-01-02T03:04:05+00:00", fingerprint="abc"
)


def test_the_folder_is_sluice_data_or_below_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_DATA", raising=False)
    assert stack_folder().data == tmp_path / ".sluice"

    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path / "link"))
    assert stack_folder().data == tmp_path / "real"


def modes_of(folder: StackFolder) -> dict[str, int]:
    """The permissions of a stack's folder and of all that lies in it, by name."""
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder.data, *folder.data.iterdir())}


def test_each_start_closes_what_was_left_open(folder: StackFolder) -> None:
    for name in ("environment", "credentials.json"):
        (folder.data / name).touch()
    for path in (*folder.data.iterdir(), folder.data):
        path.chmod(0o755 if path.is_dir() else 0o644)

    folder.create()

    closed = {"data": 0o700, "run": 0o700, "logs": 0o700, "tmp": 0o700}
    assert modes_of(folder) == closed | {"environment": 0o600, "credentials.json": 0o600}


@pytest.mark.parametrize("names", [(), ("bootstrap.json",), ("lock", "notes.txt")])
def test_an_open_folder_that_is_empty_or_a_stack_s_is_taken(tmp_path: Path, names: tuple[str, ...]) -> None:
    data = tmp_path / "open"
    data.mkdir()
    data.chmod(0o755)
    for name in names:
        (data / name).touch()

    StackFolder(data).create()

    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_an_open_folder_with_other_files_is_not_closed(tmp_path: Path) -> None:
    data = tmp_path / "shared"
    data.mkdir()
    data.chmod(0o1777)
    (data / "notes.txt").touch()

    with pytest.raises(StackError, match=r"shared is open to other users \(mode 777\) and holds files that are not"):
        StackFolder(data).create()

    assert stat.S_IMODE(data.stat().st_mode) == 0o1777
    assert [path.name for path in data.iterdir()] == ["notes.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "theirs"
    data.mkdir(mode=0o700)
    os.chown(data, 65533, 65533)

    with pytest.raises(StackError, match=r"theirs belongs to another user \(uid 65533\)"):
        StackFolder(data).create()


def test_what_a_process_of_the_stack_creates_is_private(folder: StackFolder, tmp_path: Path) -> None:
    made = tmp_path / "made"
    argv = ["/bin/sh", "-c", f"mkdir {made} && touch {made}/file"]

    pid = start_process(argv, environment=dict(os.environ), working_folder=tmp_path, log=folder.log("x"))

    assert wait_until(lambda: exit_code(pid), lambda code: code is not None, seconds=10) == 0
    assert [stat.S_IMODE(path.stat().st_mode) for path in (made, made / "file")] == [0o700, 0o600]


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, "old")

    with pytest.raises(UnicodeEncodeError):
        write_private(path, "\ud800")

    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_records_are_read_as_they_were_written(folder: StackFolder) -> None:
    write_record(folder, RECORD)
    (folder.records / "seaweedfs.json").write_text("{")

    assert read_records(folder) == {"kafka": RECORD}
    assert RECORD.since == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    remove_record(folder, "kafka")
    remove_record(folder, "kafka")
    assert read_records(folder) == {}


def test_a_record_of_an_earlier_version_is_read(folder: StackFolder) -> None:
    text = (
        '{"service": "kafka", "pid": 42, "start_ticks": 7, "started_at": "2026-01-02T03:04:05+00:00",'
        ' "fingerprint": "abc"}\n'
    )
    (folder.records / "kafka.json").write_text(text)

    assert read_records(folder) == {"kafka": RECORD}

    write_record(folder, RECORD)
    assert (folder.records / "kafka.json").read_text() == text


def test_the_selection_is_kept(folder: StackFolder) -> None:
    assert read_selection(folder) == []

    write_selection(folder, ["kafka", "postgres"])

    assert read_selection(folder) == ["kafka", "postgres"]


def test_a_fingerprint_changes_with_what_a_process_is_started_with() -> None:
    command = Command(argv=("a", "b"), working_folder=Path("/"), environment={"A": "1", "B": "2"})
    same = Command(argv=("a", "b"), working_folder=Path("/"), environment={"B": "2", "A": "1"})
    others = [
        Command(argv=("a b",), working_folder=Path("/"), environment=command.environment),
        Command(argv=command.argv, working_folder=Path("/tmp"), environment=command.environment),  # noqa: S108
        Command(argv=command.argv, working_folder=Path("/"), environment={"A": "1", "B": "3"}),
    ]

    assert fingerprint(same) == fingerprint(command)
    assert fingerprint(command) not in {fingerprint(other) for other in others}


def test_the_lock_names_its_holder(folder: StackFolder) -> None:
    with exclusive(folder), pytest.raises(StackError, match=rf"\(pid {os.getpid()}\) is changing this stack"):  # noqa: SIM117
        with exclusive(folder):
            pytest.fail("two held it")
    with exclusive(folder):
        pass


def test_a_disk_with_less_than_the_bound_is_refused(tmp_path: Path) -> None:
    check_disk(tmp_path / "not" / "there", minimum_free_bytes=1)

    with pytest.raises(
        StackError, match=r"The disk of .*data is full: \d+ MiB are free, the stack needs at least \d+ MiB"
    ):
        check_disk(tmp_path / "data", minimum_free_bytes=1024**6)


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 5) == []
    assert last_line(log) == "it wrote nothing"

    log.write_bytes(b"first\n" + b"x" * 100_000 + b"\n\0\0second\nthird " + b"y" * 1000 + b"\n  \n")

    assert [line[:6] for line in last_lines(log, 3)] == ["second", "third ", "  "]
    assert last_line(log) == "third " + "y" * 294


def test_following_a_log_that_is_started_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")
    lines = follow_log(log, position=4)

    with log.open("a") as file:
        file.write("one\ntwo\nha")
        file.flush()
        first = [next(lines), next(lines)]
        file.write("lf\n")
    second = next(lines)
    log.write_text("end\n")

    assert [*first, second, next(lines)] == ["one", "two", "half", "end"]


def test_plain_lines_without_a_terminal() -> None:
    output = StringIO()
    display = PlainDisplay(Console(file=output))

    display.begin("kafka", "Kafka [broker]")
    display.note("Port 1 moves.")
    display.finish("kafka", "started")

    assert re.fullmatch(r"Port 1 moves\.\nKafka \[broker\]: started \(\d+\.\d s\)\n", output.getvalue())


def test_live_lines_on_a_terminal() -> None:
    output = StringIO()
    with LiveDisplay(Console(file=output, force_terminal=True, width=100)) as display:
        display.begin("kafka", "Kafka")
        display.finish("kafka", "started")

    assert "Kafka" in output.getvalue()
    assert "started" in output.getvalue()


def test_no_two_secrets_are_equal_and_none_is_short() -> None:
    values = [*astuple(generate_credentials()), *astuple(generate_credentials())]

    assert len(set(values)) == 2 * len(fields(Credentials))
    assert min(len(value) for value in values) >= 16


def test_a_secret_is_never_shown() -> None:
    credentials = generate_credentials()

    assert not any(value in f"{credentials} {credentials!r}" for value in astuple(credentials))


def test_credentials_are_generated_once_and_kept_private(folder: StackFolder) -> None:
    first = ensure_credentials(folder, is_new=True)

    assert ensure_credentials(folder, is_new=True) == first
    assert ensure_credentials(folder, is_new=False) == first
    assert stat.S_IMODE(folder.credentials.stat().st_mode) == 0o600


def test_lost_credentials_of_existing_data_are_not_replaced(folder: StackFolder) -> None:
    with pytest.raises(StackError, match="holds data that only its credentials open"):
        ensure_credentials(folder, is_new=False)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"postgres_password": "x"})])
def test_a_damaged_file_is_named(folder: StackFolder, text: str) -> None:
    folder.credentials.write_text(text)

    with pytest.raises(StackError, match=r"credentials.json is damaged"):
        read_credentials(folder.credentials)


def test_a_stack_that_was_never_started_has_none(folder: StackFolder) -> None:
    with pytest.raises(StackError, match=r"credentials.json does not exist. Start the stack"):
        read_credentials(folder.credentials)
