"""`sluice stream rewind` on a real catalog and ledger, killed at each of its steps and typed again. No Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from tests.fixtures.drill import sampled
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.maintenance.conftest import offset
from tests.integration.positions.test_repair_commands import content, filled, folder

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import UsageError
from sluice.ledger.batch_findings import RuleResult
from sluice.ledger.batches import BatchObservation, PublicationKey, recent_batches, record_batch
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.generations import current_generation
from sluice.pages.page_actions import PageActions
from sluice.positions.judge_position import disagreeing, judge_position
from sluice.positions.observe_position import observe_position
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import StagedBatch, canonical_offsets
from sluice.settings import load_settings
from sluice_airflow.composition import load_deployment
from sluice_airflow.tasks.control_positions import plan_back, take_back

__all__ = ["copier"]

NEWEST_TOKEN = 10**14
"""Of a run that begins after the rewind, whose token is the time in milliseconds."""

FILES = 11
"""How many files of the checkpoint a rewind from batch 3 to 0 changes: `metadata` twice, plans, states, commits."""


def published(copier: Copier) -> None:
    """Batches 0 to 2 are visible and recorded, batch 3 is staged, and the checkpoint has committed all of them."""
    filled(copier, batches=4)
    for number in (0, 1, 2, 3):
        if number:
            staged = copier.bench.stage(
                number, [10 * number], start_offsets=ends_of(copier), end_offsets=ends_of(copier)
            )
        if number in (1, 2):
            copier.bench.publish(staged)
        if number < 3:
            record(copier, number)


def stage(copier: Copier, number: int, *ids: int) -> StagedBatch:
    """A batch that has read nothing more of its source."""
    return copier.bench.stage(number, ids, start_offsets=ends_of(copier), end_offsets=ends_of(copier))


def rewound(copier: Copier, capsys: pytest.CaptureFixture[str], *more: str, to: int = 0) -> tuple[int, str, str]:
    """The command."""
    return typed(["stream", "rewind", copier.stream, "--to-batch", str(to), *more], capsys)


def killed(copier: Copier, point: CrashPoint, occurrence: int, *, to: int = 0, stream: str = "") -> None:
    """Rewind in a process that dies at a place. stream: another one than the copier."""
    argv = [sys.executable, "-m", "tests.faults.dying_repair", "--stream", stream or copier.stream]
    argv += ["--to-batch", str(to)]
    argv += ["--point", point, "--occurrence", str(occurrence)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603  # our own
    assert ended.returncode == -9, ended.stderr


def may_start(copier: Copier) -> bool:
    """Whether all witnesses agree, so that a start continues from the checkpoint."""
    stream = load_declarations(load_settings().pipelines).stream(copier.stream).declaration
    now = datetime.now(tz=UTC)
    seen = observe_position(copier.ledger, copier.bench.catalog, stream, load_settings(), now=now, is_whole=True)
    return not disagreeing(judge_position(seen))


def require_rewound(copier: Copier) -> None:
    """Table, staging table, checkpoint and ledger stand at batch 0, and the next run goes on from there."""
    assert (copier.bench.ids_by_duckdb(), copier.bench.mark().batch) == ([1, 2], 0)
    assert [one.summary.key.batch for one in copier.bench.staged() if one.summary.key.batch] == []
    entries = {path for path in content(folder(copier)) if not path.endswith(".crc")}
    assert entries == {"metadata", "offsets/0", "commits/0", "state/0/0/1.delta"}
    assert [one.key.batch for one in recent_batches(copier.ledger, copier.stream, 9)] == [0]
    later = copier.bench.as_run(NEWEST_TOKEN)
    later.begin()
    later.publish(stage(replace(copier, bench=later), 1, 5))
    assert copier.bench.ids_by_duckdb() == [1, 2, 5]


def test_stream_and_table_go_back_together_as_the_plan_says(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published(copier)
    code, shown, errors = rewound(copier, capsys, "--dry-run", "--json")
    assert code == 0, errors
    (plan,) = json.loads(shown)["plans"]
    assert (plan["verb"], plan["at_stake"], plan["rows"], plan["refusals"]) == ("rewind", "rows", 2, [])
    assert plan["evidence"]["recorded"] == 2
    code, _, errors = rewound(copier, capsys)
    assert (code, "`--yes`" in errors, copier.bench.ids()) == (2, True, [1, 2, 10, 20])

    code, said, errors = rewound(copier, capsys, "--yes")

    assert (code, "2 added and 0 removed rows" in said, "Discard 3 staged" in said) == (0, True, True), errors + said
    (event, *_) = recent_events(copier.ledger, EventSubject.STREAM, copier.stream, limit=1)
    assert (event.action, event.evidence["rows_hidden"]) == ("rewind", 2)
    code, said, _ = rewound(copier, capsys)
    assert (code, "nothing is changed" in said) == (0, True)
    require_rewound(copier)


@pytest.mark.parametrize(
    "died_at",
    sampled(
        [
            (CrashPoint.BEGUN, 1),
            (CrashPoint.CLEARED, 1),
            (CrashPoint.COMMITTED, 1),
            (CrashPoint.COMMITTED, 2),
            (CrashPoint.RECORDED, 1),
            *((CrashPoint.FILE_CHANGED, one) for one in range(1, FILES + 1)),
        ],
        {(CrashPoint.COMMITTED, 1)},
        full={(CrashPoint.CLEARED, 1), (CrashPoint.RECORDED, 1), (CrashPoint.FILE_CHANGED, 5)},
    ),
)
def test_a_rewind_that_was_killed_is_completed_by_typing_it_again(
    copier: Copier, died_at: tuple[CrashPoint, int], capsys: pytest.CaptureFixture[str]
) -> None:
    published(copier)

    killed(copier, *died_at)

    is_done = died_at == (CrashPoint.FILE_CHANGED, FILES)
    is_half = died_at[0] is not CrashPoint.BEGUN and not is_done
    assert may_start(copier) is not is_half, "a driver would continue behind a half of it"
    code, said, errors = rewound(copier, capsys, "--yes")
    assert code == 0, errors
    assert ("nothing is changed" in said) is is_done
    require_rewound(copier)


@pytest.mark.full  # every run: `test_states_taken_back.py`
@pytest.mark.parametrize("has_commit", [True, False])
def test_behind_an_older_copy_of_the_checkpoint_no_driver_starts_half_way(
    copier: Copier, capsys: pytest.CaptureFixture[str], *, has_commit: bool
) -> None:
    """Without a commit beyond the batch, nothing in it would say that the tables went back."""
    published(copier)
    for newer in ("offsets/2", "offsets/3", "commits/2", "commits/3", *(() if has_commit else ("commits/1",))):
        (folder(copier) / newer).unlink()

    killed(copier, CrashPoint.COMMITTED, 2, to=1)

    assert not may_start(copier)
    assert not (folder(copier) / "metadata").exists()
    code, _, errors = rewound(copier, capsys, "--yes", to=1)
    assert code == 0, errors
    assert may_start(copier)
    assert copier.bench.ids() == [1, 2, 10]


def test_rows_of_others_are_not_hidden(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published(copier)
    copier.bench.write_as_another(100, 101)

    code, shown, _ = rewound(copier, capsys, "--dry-run")

    assert (code, "refused (other_writers)" in shown, "2 rows of theirs would be lost" in shown) == (1, True, True)
    code, _, _ = rewound(copier, capsys, "--yes")
    assert (code != 0, copier.bench.ids()) == (True, [1, 2, 10, 20, 100, 101])


def test_what_others_committed_right_behind_the_batch_stays(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    filled(copier, batches=2)
    record(copier, 0)
    copier.bench.write_as_another(100)
    copier.bench.publish(stage(copier, 1, 10))

    code, _, errors = rewound(copier, capsys, "--yes")

    assert (code, copier.bench.ids()) == (0, [1, 2, 100]), errors


def test_a_batch_that_no_snapshot_shows_any_more_is_refused(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published(copier)
    copier.bench.expire_all_but_the_newest()

    code, shown, _ = rewound(copier, capsys, "--dry-run")

    assert (code, "refused (not_provable): No snapshot in the history of" in shown) == (1, True), shown


def test_a_reader_that_has_passed_is_named_and_keeps_its_rows_only_on_request(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    published(copier)
    reader = reader_of(copier)
    head = copier.bench.target().metadata.current_snapshot_id
    assert head is not None
    record(copier, 0, stream=reader, ends={"copies": offset(head)}, rows=4)

    code, shown, _ = rewound(copier, capsys, "--dry-run")

    assert (code, "refused (readers_repeat)" in shown) == (1, True), shown
    assert f"{reader} has read {copier.bench.output.target} beyond that, in batches 0 to 0 with 4 rows" in shown
    code, said, errors = rewound(copier, capsys, "--leave-readers", "--yes")
    assert (code, f"`sluice stream continue {reader} --dry-run`" in said) == (0, True), errors
    require_rewound(copier)


def test_a_time_names_the_batch_that_the_table_showed_then(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published(copier)
    second = copier.bench.target().snapshots()[-1]
    before = datetime.fromtimestamp(second.timestamp_ms / 1000, UTC) - timedelta(milliseconds=1)
    words = ["stream", "rewind", copier.stream, "--dry-run", "--to-time"]

    code, shown, errors = typed([*words, before.strftime("%Y-%m-%dT%H:%M:%S.%f")], capsys)

    assert (code, f"rewind {copier.stream}, to batch 1:1" in shown) == (0, True), errors + shown
    code, _, errors = typed([*words, "2001-01-01"], capsys)
    assert (code, "showed no batch of generation 1" in errors) == (2, True)
    code, _, errors = typed(["stream", "rewind", copier.stream], capsys)
    assert (code, "One of --to-batch and --to-time is needed" in errors) == (2, True)


def test_the_form_of_the_on_call_takes_a_stream_back_as_it_was_shown(copier: Copier) -> None:
    published(copier)
    deployment = load_deployment()
    stream = load_declarations(deployment.settings.pipelines).stream(copier.stream)
    with pytest.raises(UsageError, match="is not chosen"):
        plan_back(deployment, copier.ledger, stream, None)
    shown = plan_back(deployment, copier.ledger, stream, 0)
    with pytest.raises(UsageError, match="is another one than was shown"):
        take_back(deployment, copier.ledger, stream, 1, planned=shown.digest, asked_by="ann")
    assert copier.bench.ids() == [1, 2, 10, 20]

    take_back(deployment, copier.ledger, stream, 0, planned=shown.digest, asked_by="ann")

    require_rewound(copier)


@pytest.mark.full  # every run: the form of the on-call
def test_a_page_takes_a_stream_back_as_it_was_shown(copier: Copier) -> None:
    published(copier)
    declarations = load_declarations(load_settings().pipelines)
    page = PageActions(ledger=copier.ledger, settings=load_settings(), actor="airflow: page, ann")
    shown = page.plan_rewind(declarations, copier.stream, 0)
    with pytest.raises(UsageError, match="is another one than was shown"):
        page.rewind(declarations, copier.stream, 1, planned=shown.digest)
    assert copier.bench.ids() == [1, 2, 10, 20]

    page.rewind(declarations, copier.stream, 0, planned=shown.digest)

    (event, *_) = recent_events(copier.ledger, EventSubject.STREAM, copier.stream, limit=1)
    assert (event.action, event.actor.name) == ("rewind", "airflow: page, ann")
    require_rewound(copier)


def reader_of(copier: Copier) -> str:
    """A declared stream that reads the table, and has run."""
    pipelines, name = load_settings().pipelines, f"{copier.stream}_reader"
    declared = yaml.safe_load((pipelines / f"{copier.stream}.stream.yaml").read_text())
    table = copier.bench.output.target
    declared |= {
        "stream": name,
        "inputs": {"copies": {"stream": {"iceberg": {"table": table, "starting": "table"}}}},
        "outputs": {"again": {"iceberg": {"table": f"{copier.stream}.again"}}},
        "transformation": {"sql": "again.sql"},
    }
    (pipelines / "again.sql").write_text("SELECT * FROM copies")
    (pipelines / f"{name}.stream.yaml").write_text(yaml.safe_dump(declared))
    again = yaml.safe_load((pipelines / f"{copier.stream}.copies.table.yaml").read_text())
    again["table"] = f"{copier.stream}.again"
    (pipelines / f"{copier.stream}.again.table.yaml").write_text(yaml.safe_dump(again))
    root = load_settings().checkpoints
    current_generation(copier.ledger, name, checkpoints_root=root)
    folder = pipelines / "ck" / name / "1"
    for path in ("offsets/0", "commits/0"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("v1\n{}\n{}")
    return name


def record(
    copier: Copier,
    number: int,
    *,
    stream: str = "",
    ends: Mapping[str, Any] | None = None,
    rows: int = 1,
    rules: tuple[RuleResult, ...] = (),
) -> None:
    """The ledger has a batch."""
    batch = BatchObservation(
        key=PublicationKey(stream=stream or copier.stream, generation=1, batch=number),
        run_id="run-1",
        started_at=datetime.now(tz=UTC),
        duration_ms=1,
        input_rows=rows,
        published_rows={"copies": rows},
        end_offsets=ends or json.loads(ends_of(copier)),
        rule_results=rules,
    )
    record_batch(copier.ledger, batch)


def ends_of(copier: Copier) -> str:
    """The offsets where its source stands."""
    source = copier.bench.catalog.load_table(f"{copier.stream}.rows").metadata.current_snapshot_id
    assert source is not None
    return canonical_offsets({"rows": offset(source)})
