"""The check of the checkpoints watches the reconciler: after a start of Airflow both are due at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import event, text

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.airflow_owner import MISSING_AFTER, begin_pass
from sluice.ledger.connection import Ledger
from sluice_airflow.dag_builders import platform_dags
from sluice_airflow.tasks import platform_tasks
from sluice_airflow.tasks.platform_tasks import await_pass


def test_a_pass_that_begins_meanwhile_is_waited_for(ledger: Ledger) -> None:
    begin_pass(ledger, "yesterday")
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.reconciler_passes SET began_at = began_at - interval '9 hours'"))
    missing = await_pass(ledger, seconds=0)
    assert missing is not None
    assert missing > MISSING_AFTER

    looks = 0

    def begins_after_the_first_look(*_: Any) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            begin_pass(ledger, "this-morning")

    event.listen(ledger.engine, "after_cursor_execute", begins_after_the_first_look)
    assert await_pass(ledger, seconds=60, poll_seconds=0.01) is None


def test_a_damaged_checkpoint_hides_no_missing_reconciler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    done: list[str] = []

    def find_damage(streams: Sequence[str]) -> None:
        del streams
        done.append("checkpoints")
        raise AirflowFailException("damaged")

    monkeypatch.setattr(platform_dags, "check_streams", find_damage)
    monkeypatch.setattr(platform_tasks, "require_reconciler", lambda by: done.append(by))
    dag = platform_dags.checkpoint_health_dag(load_declarations(folder))
    check: Any = dag.get_task(platform_dags.CHECK_TASK)
    with pytest.raises(AirflowFailException, match="damaged"):
        check.python_callable(params=None)
    assert done == ["checkpoints", "airflow: checkpoint_health"]
