"""A refresh builds the content of a table again beside the live stream, and replaces it in one commit."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from tests.fixtures.drill import sampled
from tests.fixtures.refreshes import (
    ROWS,
    at_step,
    refresh,
    right,
    rows_by_duckdb,
    run_wrong_copy,
    take_it_back,
    wrong,
)
from tests.fixtures.stack import Stack
from tests.fixtures.workshop import Workshop

from sluice.cli.app import main
from sluice.errors import VerificationError
from sluice.ledger.generations import find_generation
from sluice.ledger.refreshes import RefreshState, newest_refresh
from sluice.publication.crash_points import CrashPoint

NEW = {"id": 100, "word": "new"}
NEWER = {"id": 101, "word": "newer"}

MODES: list[dict[str, Any]] = [{"mode": "append"}, {"mode": "merge", "keys": ["id"]}]


@pytest.mark.parametrize("output", sampled(MODES, MODES[1:]), ids=["append", "merge"])
def test_a_refreshed_table_has_the_rows_of_the_corrected_query_and_the_stream_goes_on(
    output: dict[str, Any], workshop: Workshop
) -> None:
    name = run_wrong_copy(workshop, **output)
    seen: list[list[dict[str, Any]]] = []

    def go_on() -> None:
        """The live stream publishes beside the refresh; readers see the old content with it."""
        workshop.append("source", [NEW])
        workshop.run_supervised(name)
        seen.append(workshop.rows("target"))

    refreshed = refresh(workshop, name, reached=at_step(CrashPoint.BUILT, go_on))

    assert seen == [[*wrong(ROWS), *right([NEW])]]
    assert rows_by_duckdb(workshop) == right([*ROWS, NEW])
    assert (refreshed.state, refreshed.rows, refreshed.opens) == (RefreshState.SWAPPED, len(ROWS) + 1, 2)
    workshop.append("source", [NEWER])
    workshop.run_supervised(name)
    assert workshop.rows("target") == right([*ROWS, NEW, NEWER])
    generation = find_generation(workshop.ledger, name)
    assert generation is not None
    assert (generation.generation, refreshed.shadow in generation.checkpoint) == (2, True)

    back = take_it_back(workshop, name)

    assert back.state is RefreshState.TAKEN_BACK
    assert rows_by_duckdb(workshop) == [*wrong(ROWS), *right([NEW])]
    assert refreshed.tag not in workshop.table("target").refs()
    workshop.run_supervised(name)
    assert workshop.rows("target") == [*wrong(ROWS), *right([NEW, NEWER])], "it reads on from where it was before"


@pytest.mark.full  # every run: what differs in an interval (`spark/backfill`)
def test_readers_that_see_something_else_than_was_computed_are_noticed_until_it_is_taken_back(
    workshop: Workshop,
) -> None:
    name = run_wrong_copy(workshop)

    def change_a_row() -> None:
        """As many rows as before, one of them with another word."""
        newest = newest_refresh(workshop.ledger, name)
        assert newest is not None
        shadow = workshop.catalog.load_table(("refresh_staging", newest.shadow))
        shadow.overwrite(pa.Table.from_pylist([{**ROWS[0], "word": "?"}]), EqualTo(term="id", value=ROWS[0]["id"]))

    with pytest.raises(VerificationError, match=r"readers of \S+ see 6 rows with the sums .* it has computed 6 rows"):
        refresh(workshop, name, reached=at_step(CrashPoint.RECORDED, change_a_row))
    with pytest.raises(VerificationError, match="has computed 6 rows") as again:
        refresh(workshop, name)

    assert again.value.next_step == f"Bring the earlier content back: `sluice stream refresh {name} --take-back`."
    assert take_it_back(workshop, name).state is RefreshState.TAKEN_BACK
    assert workshop.rows("target") == wrong(ROWS)


def exit_of(words: list[str]) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


@pytest.mark.full  # every run: the same by the functions of the command, and the command without Spark
def test_the_command_shows_the_plan_refreshes_and_takes_back(
    workshop: Workshop, services: Stack, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    name = run_wrong_copy(workshop)
    for variable, value in services.environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("SLUICE_PIPELINES", str(workshop.folder))
    monkeypatch.setenv("SLUICE_CHECKPOINTS", workshop.settings.checkpoints)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)  # that of the ring's session
    command = ["stream", "refresh", name]

    assert exit_of([*command, "--dry-run"]) == 0
    planned = capfd.readouterr().out.splitlines()
    assert planned[1].startswith(
        f"  1. Read input rows: every row of {workshop.table_name('source')}; now these are 6 rows in "
    )
    assert planned[-1] == "Nothing was changed: this was a dry run."
    assert newest_refresh(workshop.ledger, name) is None

    assert exit_of(command) == 2, "it asks"
    assert newest_refresh(workshop.ledger, name) is None
    capfd.readouterr()
    assert exit_of([*command, "--keep-days", "2", "--yes"]) == 0
    done = capfd.readouterr().out.splitlines()
    assert done[-1].startswith(f"{workshop.table_name('target')} has its new content, 6 rows, in snapshot ")
    assert workshop.rows("target") == right(ROWS)

    assert exit_of([*command, "--take-back", "--dry-run"]) == 0
    assert "by the 6 rows from before refresh" in capfd.readouterr().out
    assert exit_of([*command, "--take-back", "--yes", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["result"]["state"] == "taken_back"
    assert workshop.rows("target") == wrong(ROWS)
    assert exit_of([*command, "--abandon", "--yes"]) == 2
    assert "it cannot be given up" in capfd.readouterr().err
