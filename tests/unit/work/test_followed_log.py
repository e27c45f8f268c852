"""The lines of one item, as a command follows them in the log of an application that does several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.ledger.work_values import WorkObservation, WorkState
from sluice.processes.driver_watch import rotate_if_full
from sluice.work.pools import FollowedLog, last_lines_of_item

ITEM = "0a1b2c3d-0000-4000-8000-000000000000"
OWN, OTHER, NONE = (f"2026-11-26T01:06:41Z INFO {label}" for label in ("[0a1b2c3d] ", "[ffffffff] ", ""))
LOG = f"{OWN}begins\n{OTHER}begins\n  at another.line\n{OWN}fails\n  at our.line\n  at our.end\n{NONE}it ends\n"
OF_ITEM = [f"{OWN}begins", f"{OWN}fails", "  at our.line", "  at our.end"]


def seen(log: Path | None) -> WorkObservation:
    """An item whose application has this log."""
    return WorkObservation(
        item=ITEM,
        state=WorkState.CLAIMED,
        failure=None,
        result=None,
        application="an-application",
        log_file=None if log is None else str(log),
        needs_application=False,
    )


@pytest.mark.parametrize("at_once", [1, 7, 60, 1000])
def test_every_line_is_handed_on_once_in_whatever_pieces_the_log_grows(tmp_path: Path, at_once: int) -> None:
    log, lines = tmp_path / "log", list[str]()
    followed = FollowedLog(item=ITEM, on_line=lines.append)
    followed.read(seen(None))
    followed.read(seen(log))

    for start in range(0, len(LOG), at_once):
        with log.open("a") as file:
            file.write(LOG[start : start + at_once])
        followed.read(seen(log))
        followed.read(seen(log))

    assert lines == OF_ITEM


def test_the_log_of_the_next_application_is_followed_from_its_beginning(tmp_path: Path) -> None:
    lines: list[str] = []
    followed = FollowedLog(item=ITEM, on_line=lines.append)
    for name in ("first", "second"):
        (tmp_path / name).write_text(LOG)
        followed.read(seen(tmp_path / name))

    assert lines == OF_ITEM * 2


def test_the_last_lines_are_those_of_the_item(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)

    assert last_lines_of_item(seen(tmp_path / "log"), limit=2) == OF_ITEM[-2:]
    for nowhere in (tmp_path / "gone", None):
        assert last_lines_of_item(seen(nowhere), limit=2) == [
            "no log on this host has a line about this item: see that of application an-application"
        ]
    unclaimed = replace(seen(None), application=None)
    assert last_lines_of_item(unclaimed, limit=2) == ["no application has claimed this item yet"]


def test_a_log_that_is_cut_is_followed_from_its_new_beginning(tmp_path: Path) -> None:
    log, lines = tmp_path / "log", list[str]()
    followed = FollowedLog(item=ITEM, on_line=lines.append)
    log.write_text(LOG)
    followed.read(seen(log))

    assert rotate_if_full(log, largest_bytes=1)
    followed.read(seen(log))
    with log.open("a") as file:
        file.write(f"{OWN}goes on\n")
    followed.read(seen(log))

    assert lines == [*OF_ITEM, f"{OWN}goes on"]


def test_the_last_lines_of_an_item_go_back_into_a_log_that_was_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(LOG)
    assert rotate_if_full(log, largest_bytes=1)
    log.write_text(f"{OWN}goes on\n")

    assert last_lines_of_item(seen(log), limit=9) == [*OF_ITEM, f"{OWN}goes on"]
