"""`sluice table adopt` on a real catalog and ledger, killed at each of its steps and typed again. No Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from tests.fixtures.drill import first_of
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.maintenance.conftest import offset
from tests.integration.positions.test_repair_commands import filled

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import StaleTokenError, UsageError
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.generations import find_generation, record_identities
from sluice.positions.adopt_table import adopt_table
from sluice.positions.adoption import AdoptionWay
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import canonical_offsets
from sluice.settings import load_settings
from sluice.sources.source_identities import output_table_name
from sluice_airflow.composition import load_deployment
from sluice_airflow.tasks.control_positions import adopt_for, plan_for

__all__ = ["copier"]

TAKEN_OUT = [3, 4]
FOREIGN = [100, 101, 102]
NEWEST_TOKEN = 10**14
"""Of a run that begins after the adoption, whose token is the time in milliseconds."""


def words(copier: Copier, way: str, *more: str) -> Sequence[str]:
    """The command."""
    return ["table", "adopt", copier.bench.output.target, f"--{way}", *more]


def rolled_back(copier: Copier, *, with_foreign: bool = False) -> None:
    """Two batches are visible and recorded, and the table is set back behind the second one."""
    filled(copier, batches=2)
    first = copier.bench.target().metadata.current_snapshot_id
    assert first is not None
    source = copier.bench.catalog.load_table(f"{copier.stream}.rows").metadata.current_snapshot_id
    assert source is not None
    ends = canonical_offsets({"rows": offset(source)})
    copier.bench.publish(copier.bench.stage(1, TAKEN_OUT, start_offsets=ends, end_offsets=ends))
    copier.bench.clear()
    batch = BatchObservation(
        key=PublicationKey(stream=copier.stream, generation=1, batch=1),
        run_id="run-1",
        started_at=datetime.now(tz=UTC),
        duration_ms=1,
        input_rows=len(TAKEN_OUT),
        published_rows={"copies": len(TAKEN_OUT)},
        end_offsets={"rows": offset(source)},
    )
    record_batch(copier.ledger, batch)
    copier.bench.target().manage_snapshots().rollback_to_snapshot(first).commit()
    if with_foreign:
        copier.bench.write_as_another(*FOREIGN)


def continued(copier: Copier, batch: int, ids: Sequence[int]) -> None:
    """The next run of the stream publishes a batch."""
    later = copier.bench.as_run(NEWEST_TOKEN)
    later.begin()
    later.publish(later.stage(batch, ids, start_offsets=_ends(copier)))


def killed(copier: Copier, way: AdoptionWay, point: CrashPoint) -> None:
    """Adopt in a process that dies at a place."""
    argv = [sys.executable, "-m", "tests.faults.dying_repair", "--stream", copier.stream]
    argv += ["--table", copier.bench.output.target, "--way", way, "--point", point]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603  # our own
    assert ended.returncode == -9, ended.stderr


def test_a_rollback_by_mistake_is_undone_and_names_what_that_hides(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled_back(copier, with_foreign=True)
    head = copier.bench.target().metadata.current_snapshot_id
    code, shown, errors = typed(words(copier, "undo", "--dry-run", "--json"), capsys)
    assert code == 0, errors
    (plan,) = json.loads(shown)["plans"]
    assert (plan["verb"], plan["part"], plan["at_stake"], plan["rows"]) == ("adopt", "undo", "rows", len(FOREIGN))
    assert plan["evidence"]["hides"] == [head]
    code, _, errors = typed(words(copier, "undo"), capsys)
    assert (code, "`--yes`" in errors, copier.bench.ids()) == (2, True, [1, 2, *FOREIGN])

    code, said, errors = typed(words(copier, "undo", "--yes"), capsys)

    assert code == 0, errors
    assert f"snapshot {head} (append, 3 rows, of another writer)" in said
    assert copier.bench.ids_by_duckdb() == [1, 2, *TAKEN_OUT]
    assert copier.bench.target().metadata.refs[f"sluice_before_adoption_{head}"].snapshot_id == head
    for subject, name in ((EventSubject.STREAM, copier.stream), (EventSubject.TABLE, copier.bench.output.target)):
        (event, *_) = recent_events(copier.ledger, subject, name, limit=1)
        assert (event.action, event.evidence["rows_hidden"]) == ("adopt_table", len(FOREIGN))
    code, said, _ = typed(words(copier, "undo"), capsys)
    assert (code, "is what its streams have published: nothing is changed." in said) == (0, True)
    continued(copier, 2, [5])
    assert copier.bench.ids_by_duckdb() == [1, 2, *TAKEN_OUT, 5]


def test_a_rollback_that_was_meant_is_accepted_with_the_number_of_its_rows(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled_back(copier, with_foreign=True)

    code, said, errors = typed(words(copier, "accept", "--yes"), capsys)

    assert (code, "2 rows of it are gone, and are not read again." in said) == (0, True), errors
    assert f"Then: `sluice stream start {copier.stream}`." in said
    with pytest.raises(StaleTokenError):
        copier.bench.publish(copier.bench.stage(2, [9], start_offsets=_ends(copier)))
    continued(copier, 2, [5])
    assert copier.bench.ids_by_duckdb() == [1, 2, 5, *FOREIGN]


def test_what_was_taken_out_is_read_again_behind_the_mark_that_main_shows(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled_back(copier)

    code, said, errors = typed(words(copier, "reread", "--yes"), capsys)

    assert (code, "from batch 1:1 to 1:0" in said, "2 input rows are read again" in said) == (0, True, True), errors
    assert copier.bench.mark().batch == 0
    code, said, errors = typed(["stream", "repair", copier.stream, "--yes"], capsys)
    assert (code, "2 rows are read again, 0 are lost, 0 are doubled." in said) == (0, True), errors
    continued(copier, 1, TAKEN_OUT)
    assert copier.bench.ids_by_duckdb() == [1, 2, *TAKEN_OUT]


@pytest.mark.parametrize("point", first_of(CrashPoint.COMMITTED, CrashPoint.BEGUN))
@pytest.mark.parametrize("way", first_of(AdoptionWay.UNDO, AdoptionWay.ACCEPT, AdoptionWay.REREAD))
def test_an_adoption_that_was_killed_is_completed_by_typing_it_again(
    copier: Copier, way: AdoptionWay, point: CrashPoint, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled_back(copier, with_foreign=True)

    killed(copier, way, point)
    code, said, errors = typed(words(copier, way, "--yes"), capsys)

    assert code == 0, errors
    assert ("nothing is changed" in said) is (point is CrashPoint.COMMITTED)
    expected = {AdoptionWay.UNDO: [1, 2, *TAKEN_OUT]}.get(way, [1, 2, *FOREIGN])
    assert copier.bench.ids_by_duckdb() == expected
    assert copier.bench.mark().batch == (0 if way is AdoptionWay.REREAD else 1)
    code, said, _ = typed(words(copier, way), capsys)
    assert (code, "nothing is changed" in said) == (0, True)


def test_a_commit_of_another_between_plan_and_undo_is_not_hidden(copier: Copier) -> None:
    rolled_back(copier)
    settings = load_settings()

    def written(point: CrashPoint) -> None:
        if point is CrashPoint.BEGUN:
            copier.bench.write_as_another(*FOREIGN)

    with pytest.raises(UsageError, match="was not set to snapshot"):
        adopt_table(
            copier.ledger,
            copier.bench.catalog,
            load_declarations(settings.pipelines),
            settings,
            table=copier.bench.output.target,
            way=AdoptionWay.UNDO,
            asked_by="a test",
            reached=written,
        )

    assert copier.bench.ids_by_duckdb() == [1, 2, *FOREIGN]


@pytest.mark.full  # every run: a mark that is not set back
def test_an_undo_is_refused_once_the_marked_snapshot_is_gone(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled_back(copier, with_foreign=True)
    copier.bench.target().maintenance.expire_snapshots().by_id(copier.bench.mark().snapshot_id).commit()

    code, shown, _ = typed(words(copier, "undo", "--dry-run"), capsys)

    assert (code, "refused (not_provable): No snapshot of" in shown, "was expired" in shown) == (1, True, True), shown


def test_a_mark_is_not_set_back_where_the_stream_could_not_read_again(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its state is gone: the mark would stay behind without the rows of its batches ever coming back."""
    rolled_back(copier)
    for file in (filled(copier, batches=2) / "state").rglob("*.delta"):
        file.unlink()

    code, shown, _ = typed(words(copier, "reread", "--dry-run"), capsys)

    assert (code, "refused (not_provable): The checkpoint of" in shown) == (1, True), shown
    assert copier.bench.mark().batch == 1


@pytest.mark.full  # every run: `test_adoption_dangers.py`
def test_a_table_that_was_created_again_is_accepted_and_neither_undone_nor_read_again(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    name = output_table_name(copier.bench.output.target)
    filled(copier, batches=1)
    record_identities(copier.ledger, copier.stream, 1, {name: "of the old one"})
    code, shown, _ = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)
    assert (code, f"`sluice table adopt {copier.bench.output.target} --accept --dry-run`" in shown) == (1, True), shown
    for way in ("undo", "reread"):
        code, shown, _ = typed(words(copier, way, "--dry-run"), capsys)
        assert (code, "refused (other_remedy)" in shown, "--accept`" in shown) == (1, True, True), shown

    killed(copier, AdoptionWay.ACCEPT, CrashPoint.BEGUN)
    code, said, errors = typed(words(copier, "accept", "--yes"), capsys)

    assert (code, "rows that it had published into the old one are gone" in said) == (0, True), errors
    known = find_generation(copier.ledger, copier.stream)
    assert known is not None
    assert known.identities[name] == str(copier.bench.target().metadata.table_uuid)
    assert typed(["stream", "repair", copier.stream, "--dry-run"], capsys)[0] == 0


@pytest.mark.full  # every run: that of a rewind
def test_the_form_of_the_on_call_adopts_the_table_of_a_stream_as_it_was_shown(copier: Copier) -> None:
    rolled_back(copier)
    deployment = load_deployment()
    stream = load_declarations(deployment.settings.pipelines).stream(copier.stream)
    shown = plan_for(deployment, copier.ledger, stream, AdoptionWay.UNDO)
    with pytest.raises(UsageError, match="is another one than was shown"):
        adopt_for(deployment, copier.ledger, stream, AdoptionWay.ACCEPT, planned=shown.digest, asked_by="ann")
    assert copier.bench.ids() == [1, 2]

    adopt_for(deployment, copier.ledger, stream, AdoptionWay.UNDO, planned=shown.digest, asked_by="ann")

    assert (shown.subject, copier.bench.ids_by_duckdb()) == (copier.bench.output.target, [1, 2, *TAKEN_OUT])


def test_one_way_is_needed_and_a_stream_that_writes_the_table(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = typed(["table", "adopt", copier.bench.output.target], capsys)
    assert (code, "One of --undo, --accept and --reread is needed" in errors) == (2, True)
    code, _, errors = typed(["table", "adopt", f"{copier.stream}.rows", "--undo"], capsys)
    assert (code, "No declared stream writes" in errors) == (2, True)


def _ends(copier: Copier) -> str:
    source = copier.bench.catalog.load_table(f"{copier.stream}.rows").metadata.current_snapshot_id
    assert source is not None
    return canonical_offsets({"rows": offset(source)})
