"""Which logs are old, and which stay all the same."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.unit.supervision.supervision_cases import NOW, a_run

from sluice.launching.driver_records import open_log, remove_driver_logs, remove_task_logs
from sluice.processes.driver_watch import rotate_if_full

BEFORE = NOW - timedelta(days=30)


def written(file: Path, *, days_ago: int) -> Path:
    """A file that was last written so long ago."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    at = (NOW - timedelta(days=days_ago)).timestamp()
    os.utime(file, (at, at))
    return file


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_logs_of_old_runs_go_with_what_lies_beside_them(tmp_path: Path, dry_run: bool) -> None:
    old = [written(tmp_path / "flights" / name, days_ago=31) for name in ("a.log", "a.log.1", "hs_err_pid7.log")]
    kept = [written(tmp_path / "flights" / name, days_ago=90) for name in ("z.log", "z.log.2", "z.log.exit")]
    young = written(tmp_path / "flights" / "b.log", days_ago=29)
    newest = replace(a_run(), log_file=tmp_path / "flights" / "z.log")
    assert remove_driver_logs(tmp_path, before=BEFORE, newest_runs=[newest], dry_run=dry_run) == 3
    assert [file.exists() for file in old] == [dry_run] * 3
    assert all(file.exists() for file in [*kept, young]), "the newest run may be live and quiet"


def test_a_folder_that_does_not_exist_has_no_logs(tmp_path: Path) -> None:
    assert remove_driver_logs(tmp_path / "absent", before=BEFORE, newest_runs=()) == 0


def test_the_logs_of_tasks_go_but_not_those_of_streams(tmp_path: Path) -> None:
    of_reconciler = written(tmp_path / "dag_id=stream_reconciler/run_id=1/task_id=reconcile/attempt=1.log", days_ago=31)
    of_stream = written(tmp_path / "dag_id=flights/run_id=1/task_id=supervise/attempt=1.log", days_ago=90)
    young = written(tmp_path / "dag_id=stream_reconciler/run_id=2/task_id=reconcile/attempt=1.log", days_ago=1)
    other = written(tmp_path / "dag_processor/latest.log", days_ago=90)
    assert remove_task_logs(tmp_path, before=BEFORE, dags=("stream_reconciler",)) == 1
    assert [file.exists() for file in (of_reconciler, of_stream, young, other)] == [False, True, True, True]
    assert sorted(path.name for path in (tmp_path / "dag_id=stream_reconciler").iterdir()) == ["run_id=2"]


def test_a_log_is_for_its_user_and_group_whatever_the_mask_is(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "clicks" / "run.log"
    before = os.umask(0)
    try:
        with open_log(log) as opened:
            opened.write(b"a")
        log.chmod(0o644)  # as an earlier version has left it
        with open_log(log) as opened:
            opened.write(b"b")
        assert rotate_if_full(log, largest_bytes=1)
    finally:
        os.umask(before)

    copy = log.with_name("run.log.1")
    assert copy.read_bytes() == b"ab"
    assert [stat.S_IMODE(one.stat().st_mode) for one in (log.parent, log, copy)] == [0o750, 0o640, 0o640]
