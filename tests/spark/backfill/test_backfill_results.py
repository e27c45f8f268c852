"""Backfills give what the stream gives: over random input with repeated rows, in random intervals, and by command."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest
from tests.fixtures.backfills import (
    COLUMNS,
    FIRST_DAY,
    backfill,
    declare_read_stream,
    delete_days,
    expected,
    ids_by_duckdb,
)
from tests.fixtures.stack import Stack
from tests.fixtures.workshop import Workshop

from sluice.cli.app import main
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts

ONCE = """
    def transform(records):
        return records.dropDuplicates(["id"])
"""


def day(number: int) -> str:
    """A day of January."""
    return (FIRST_DAY + timedelta(days=number)).date().isoformat()


def random_rows(chance: random.Random) -> list[dict[str, Any]]:
    """Two hundred rows of ten days in random order, a fifth of them repeated, with another word."""
    rows = [
        {"id": number, "word": "a", "at": FIRST_DAY + timedelta(minutes=chance.randrange(10 * 24 * 60))}
        for number in range(200)
    ]
    repeated = [{**one, "word": "b"} for one in chance.sample(rows, 40)]
    return chance.sample([*rows, *repeated], 240)


@pytest.mark.full  # every run: `test_any_history.py`
@pytest.mark.parametrize("seed", [1])
def test_random_intervals_give_what_one_batch_over_everything_gives(seed: int, workshop: Workshop) -> None:
    chance, stream = random.Random(seed), f"s{workshop.namespace}"  # noqa: S311  # no secret
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", COLUMNS, partitioning=[{"column": "at", "transform": "month"}])
    workshop.declare_stream(
        stream,
        python=ONCE,
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"copies": {"iceberg": {"table": target}}},
        backfill={"column": "at", "balance": "rows"},
    )
    rows = random_rows(chance)
    cuts = sorted(chance.sample(range(1, 240), 2))
    for part in (rows[: cuts[0]], rows[cuts[0] : cuts[1]], rows[cuts[1] :]):
        workshop.append("source", part)
        workshop.run(stream)
    assert len(workshop.rows("target")) == 200

    # The lowest of the repeated rows remains: the word `a` of every row, whatever the stream has read first.
    oracle = sorted(({**one, "word": "a"} for one in rows if one["word"] == "a"), key=lambda one: one["id"])
    for _ in range(3):
        first = chance.randrange(9)
        last = chance.randrange(first + 1, 11)
        if chance.random() < 0.5:
            delete_days(workshop, "target", day(first), day(last))
        result = backfill(workshop, stream, start=day(first), end=day(last))
        assert result.rows["duplicate"] == 40
        assert result.rows["read"] == 240
        assert sorted(one["id"] for one in workshop.rows("target")) == list(range(200))
    backfill(workshop, stream, start=day(0), end=day(10))

    assert workshop.rows("target") == oracle
    assert backfill(workshop, stream, start=day(0), end=day(10)).state is BackfillState.UNCHANGED


@pytest.fixture
def environment(workshop: Workshop, services: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a person's shell, for commands of this process."""
    for name, value in services.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_PIPELINES", str(workshop.folder))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


@pytest.mark.full  # every run has the command (`test_backfill_command.py`) and its job (`test_backfill_requests.py`)
@pytest.mark.usefixtures("environment")
def test_the_command_shows_its_plan_and_carries_it_out(workshop: Workshop, capfd: pytest.CaptureFixture[str]) -> None:
    stream = declare_read_stream(workshop)
    delete_days(workshop, "target", "2013-01-05", "2013-01-06")
    words = ["backfill", stream, "--from", "2013-01-05", "--to", "2013-01-06", "--json"]

    with pytest.raises(SystemExit) as shown:
        main([*words, "--dry-run"])

    assert shown.value.code in (0, None)
    plan = json.loads(capfd.readouterr().out)
    assert (plan["dry_run"], [one["refusals"] for one in plan["plans"]]) == (True, [[]])
    assert recent_attempts(workshop.ledger, stream, limit=1) == ()

    with pytest.raises(SystemExit) as searched:
        main(["stream", "gaps", stream, "--to", "2013-01-09", "--json"])

    assert searched.value.code == 1
    report = json.loads(capfd.readouterr().out)
    (gap,) = report["gaps"]
    assert (gap["interval"]["start"][:10], gap["kind"], gap["expected_rows"], gap["held_rows"]) == (
        "2013-01-05",
        "missing",
        3,
        0,
    )
    assert report["compared"] == 8

    with pytest.raises(SystemExit) as done:
        main(["backfill", stream, "--gaps", "--to", "2013-01-09", "--yes"])

    written = capfd.readouterr()
    assert done.value.code in (0, None), written.err[-3000:]
    (attempt,) = recent_attempts(workshop.ledger, stream, limit=10)
    assert written.out.splitlines() == [
        f"{stream}, 2013-01-05 00:00 to 2013-01-06 00:00 UTC: 3 rows published in place of 0, in snapshot "
        f"{attempt.snapshot_id}; 2 rejected, 0 duplicate."
    ]
    assert ids_by_duckdb(workshop) == sorted(one["id"] for one in expected())
    assert attempt.launched_by.startswith("command line: ")
    with pytest.raises(SystemExit) as refused:
        main(["backfill", stream, "--from", "2013-01-05T06:00", "--to", "2013-01-06"])
    assert refused.value.code == 2


@pytest.mark.drill  # every test run replaces several days in one application (`test_joint_backfills.py`)
@pytest.mark.usefixtures("environment")
def test_the_command_replaces_several_days(workshop: Workshop, capfd: pytest.CaptureFixture[str]) -> None:
    stream = declare_read_stream(workshop)
    delete_days(workshop, "target", "2013-01-06", "2013-01-07")

    with pytest.raises(SystemExit) as several:
        main(["backfill", stream, "--from", "2013-01-05", "--to", "2013-01-08", "--yes", "--json"])

    written = capfd.readouterr()
    assert several.value.code in (0, None), written.err[-3000:]
    results = [json.loads(line) for line in written.out.splitlines()]
    assert [(one["key"].split("/")[2][:8], one["state"]) for one in results] == [
        ("20130105", "unchanged"),
        ("20130106", "published"),
        ("20130107", "unchanged"),
    ]
    assert ids_by_duckdb(workshop) == sorted(one["id"] for one in expected())
