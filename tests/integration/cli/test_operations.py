"""What a person does to a stream or a table: every verb has one form of plan, and asks where something is at stake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from sqlalchemy import func, update
from tests.fixtures.drill import sampled
from tests.fixtures.erasing import drop_all_tables
from tests.fixtures.left_behind import age, reset
from tests.fixtures.publication import COLUMNS, CatalogPlace, Workbench
from tests.fixtures.stack import Stack
from tests.integration.maintenance.conftest import Place, offset, place
from tests.integration.maintenance.test_gap_commands import cut
from tests.integration.publication.test_batch_commands import Deployment, deployment, former

from sluice.cli.app import main
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import UsageError
from sluice.ledger.batches import PublicationKey
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.events import EventAction, EventSubject, recent_events
from sluice.ledger.generations import current_generation
from sluice.ledger.held_batches import HeldBatch, hold_batch
from sluice.ledger.refreshes import Refresh, RefreshObservation, RefreshState, begin_refresh, newest_refresh
from sluice.ledger.run_values import DesiredState
from sluice.ledger.work_items import find_items
from sluice.operations import OperationVerb, Stake
from sluice.publication.staged_batch import StagedOutput, canonical_offsets
from sluice.refresh.undo_refresh import abandon, plan_way_back, take_back
from sluice.settings import load_settings
from sluice.supervision.stream_reset import plan_reset, reset_stream
from sluice.supervision.supervision_values import command_event
from sluice.tables.catalog import open_catalog

__all__ = ["cut", "deployment", "former", "place"]

KEYS = {"verb", "subject", "part", "at_stake", "rows", "steps", "refusals", "evidence", "digest"}
ASKS = "asks before it does this, and there is no terminal to answer on; nothing was changed."


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A deployment in which a command could do something. subject: the stream or table of it."""

    subject: str
    words: tuple[str, ...]
    ledger: Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Copier:
    """A stream that has copied every row of one table into another, and is at rest."""

    stream: str
    bench: Workbench
    ledger: Ledger

    def refresh(self) -> RefreshObservation:
        """A refresh of it that has begun."""
        event = command_event(EventAction.REFRESH, self.stream, by="a test")
        return begin_refresh(
            self.ledger, self.stream, digest="d", leaves=1, keeps=timedelta(days=7), asked_by="a test", event=event
        )


@pytest.fixture
def copier(services_environment: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copier]:
    """The stream with a visible batch."""
    settings, name = services_environment.settings(), f"s{uuid4().hex[:12]}"
    columns = [*COLUMNS, {"name": "at", "type": "timestamptz"}]
    for table in ("rows", "copies"):
        declared = {"table": f"{name}.{table}", "description": "x", "owner": "me", "columns": columns}
        (tmp_path / f"{name}.{table}.table.yaml").write_text(yaml.safe_dump(declared))
    stream = {
        "stream": name,
        "description": "x",
        "owner": "me",
        "mode": "incremental",
        "schedule": {"cron": "@daily"},
        "inputs": {"rows": {"stream": {"iceberg": {"table": f"{name}.rows", "starting": "table"}}}},
        "transformation": {"sql": "copy.sql"},
        "outputs": {"copies": {"iceberg": {"table": f"{name}.copies"}}},
        "backfill": {"column": "at"},
    }
    (tmp_path / f"{name}.stream.yaml").write_text(yaml.safe_dump(stream))
    (tmp_path / "copy.sql").write_text("SELECT * FROM rows")
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("SLUICE_CHECKPOINTS", (tmp_path / "ck").as_uri())
    catalog = open_catalog(settings)
    benches = [
        Workbench(
            open_catalog=lambda: open_catalog(settings),
            catalog=catalog,
            output=StagedOutput(stream=name, output=output, target=f"{name}.{output}"),
            place=CatalogPlace(environment=services_environment.environment()),
        )
        for output in ("rows", "copies")
    ]
    for bench in benches:
        bench.declare(columns=columns)
    benches[0].write_as_another(1, 2)
    source = benches[0].target().metadata.current_snapshot_id
    assert source is not None
    benches[1].begin()
    benches[1].publish(benches[1].stage(0, [1, 2], end_offsets=canonical_offsets({"rows": offset(source)})))
    with open_ledger(settings.ledger_url) as ledger:
        current_generation(ledger, name, checkpoints_root=(tmp_path / "ck").as_uri())
        set_desired_state(ledger, name, DesiredState.STOPPED)
        yield Copier(stream=name, bench=benches[1], ledger=ledger)


def of_the_copier(*words: str) -> Callable[[Any], Scene]:
    """A command over the copier; its name comes behind the first words."""

    def scene(request: Any) -> Scene:
        copier: Copier = request.getfixturevalue("copier")
        return Scene(
            subject=copier.stream, words=(*words[:-1], copier.stream, *words[-1].split()), ledger=copier.ledger
        )

    return scene


def of_an_open_refresh(request: Any) -> Scene:
    """Giving a refresh up."""
    copier: Copier = request.getfixturevalue("copier")
    copier.refresh()
    return of_the_copier("stream", "refresh", "--abandon")(request)


def of_a_swapped_refresh(request: Any) -> Scene:
    """Taking a refresh back."""
    copier: Copier = request.getfixturevalue("copier")
    begun, table = copier.refresh(), copier.bench.target()
    assert table.metadata.current_snapshot_id is not None
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, begun.tag).commit()
    values = {"state": RefreshState.SWAPPED, "keeps_until": func.now() + timedelta(days=7), "ended_at": func.now()}
    with copier.ledger.transaction() as connection:
        connection.execute(update(Refresh).where(Refresh.number == begun.number).values(**values))
    return of_the_copier("stream", "refresh", "--take-back")(request)


def of_a_gap(request: Any) -> Scene:
    """Continuing past expired snapshots."""
    place: Place = request.getfixturevalue("place")
    request.getfixturevalue("cut")
    return Scene(subject=place.stream, words=("stream", "continue", place.stream), ledger=place.ledger)


def of_staged_batches(verb: str, *more: str) -> Callable[[Any], Scene]:
    """A command over what is staged."""

    def scene(request: Any) -> Scene:
        deployment: Deployment = request.getfixturevalue("deployment")
        request.getfixturevalue("former")
        deployment.stage(0, 1, 2)
        words = ("batch", verb, deployment.stream, *more)
        return Scene(subject=deployment.stream, words=words, ledger=deployment.ledger)

    return scene


def of_a_held_batch(request: Any) -> Scene:
    """Releasing a batch that breaks a rule."""
    deployment: Deployment = request.getfixturevalue("deployment")
    key = PublicationKey(stream=deployment.stream, generation=1, batch=0)
    hold_batch(deployment.ledger, HeldBatch(key=key, reason="id > 0 (1 of 2 rows)", rows={"main": 2}))
    return Scene(
        subject=deployment.stream, words=("batch", "release", deployment.stream, "0"), ledger=deployment.ledger
    )


def of_a_held_batch_with_a_rule(request: Any) -> Scene:
    """Releasing a batch without the rows that break a rule."""
    deployment: Deployment = request.getfixturevalue("deployment")
    file = deployment.folder / f"{deployment.stream}.stream.yaml"
    rule = {"name": "named", "expression": "id > 0", "on_failure": "hold", "output": "main"}
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"quarantine": True, "rules": [rule]}))
    key = PublicationKey(stream=deployment.stream, generation=1, batch=0)
    held = HeldBatch(
        key=key, reason="named by 1 of 2 rows", rows={"main": 2, "quarantine": 0}, failed={"main": {"named": 1}}
    )
    hold_batch(deployment.ledger, held)
    words = ("batch", "release", deployment.stream, "0", "--without-failing")
    return Scene(subject=deployment.stream, words=words, ledger=deployment.ledger)


def of_a_rolled_back_table(request: Any) -> Scene:
    """Accepting a table that was set back behind a batch."""
    copier: Copier = request.getfixturevalue("copier")
    bench = copier.bench
    first = bench.target().metadata.current_snapshot_id
    assert first is not None
    ends = bench.staged()[-1].summary.end_offsets
    bench.publish(bench.stage(1, [3], start_offsets=ends, end_offsets=ends))
    bench.target().manage_snapshots().rollback_to_snapshot(first).commit()
    table = bench.output.target
    return Scene(subject=table, words=("table", "adopt", table, "--accept"), ledger=copier.ledger)


def of_a_batch_behind(request: Any) -> Scene:
    """Taking a stream back by one batch."""
    copier: Copier = request.getfixturevalue("copier")
    ends = copier.bench.staged()[-1].summary.end_offsets
    copier.bench.publish(copier.bench.stage(1, [3], start_offsets=ends, end_offsets=ends))
    words = ("stream", "rewind", copier.stream, "--to-batch", "0")
    return Scene(subject=copier.stream, words=words, ledger=copier.ledger)


def of_a_closed_generation(request: Any) -> Scene:
    """Removing what a reset has left behind."""
    copier: Copier = request.getfixturevalue("copier")
    reset(copier.ledger, copier.stream, load_settings())
    age(copier.ledger, copier.stream, days=40)
    return of_the_copier("stream", "clean", "")(request)


def of_a_table(verb: str, *more: str) -> Callable[[Any], Scene]:
    """A command over a table, with two rows and nothing else to do."""

    def scene(request: Any) -> Scene:
        copier: Copier = request.getfixturevalue("copier")
        table = copier.bench.output.target
        return Scene(subject=table, words=("table", verb, table, *more), ledger=copier.ledger)

    return scene


def of_rows_to_erase(request: Any) -> Scene:
    """A row of a table whose stream has left nothing staged. Every table of the catalog is looked at."""
    drop_all_tables(open_catalog(request.getfixturevalue("services_environment").settings()))
    request.getfixturevalue("copier").bench.clear()
    return of_a_table("erase", "--where", "id = 1")(request)


DAY = "--from 2013-01-05 --to 2013-01-06"
SCENES: dict[OperationVerb, tuple[Stake, Callable[[Any], Scene]]] = {
    OperationVerb.START: (Stake.NOTHING, of_the_copier("stream", "start", "")),
    OperationVerb.STOP: (Stake.NOTHING, of_the_copier("stream", "stop", "")),
    OperationVerb.RESTART: (Stake.NOTHING, of_the_copier("stream", "restart", "")),
    OperationVerb.RESET_BREAKER: (Stake.NOTHING, of_the_copier("stream", "reset-breaker", "")),
    OperationVerb.RESET: (Stake.CHECKPOINT, of_the_copier("stream", "reset", "")),
    OperationVerb.CONTINUE: (Stake.CHECKPOINT, of_a_gap),
    OperationVerb.REPAIR: (Stake.NOTHING, of_the_copier("stream", "repair", "")),
    OperationVerb.ADOPT: (Stake.ROWS, of_a_rolled_back_table),
    OperationVerb.REWIND: (Stake.ROWS, of_a_batch_behind),
    OperationVerb.CLEAN: (Stake.CHECKPOINT, of_a_closed_generation),
    OperationVerb.REJECT_BATCH: (Stake.ROWS, of_staged_batches("reject", "0")),
    OperationVerb.RELEASE_BATCH: (Stake.ROWS, of_a_held_batch),
    OperationVerb.SEPARATE_BATCH: (Stake.ROWS, of_a_held_batch_with_a_rule),
    OperationVerb.PUBLISH_OUTPUT: (Stake.ROWS, of_staged_batches("publish", "former")),
    OperationVerb.ABANDON_OUTPUT: (Stake.ROWS, of_staged_batches("abandon", "former")),
    OperationVerb.BACKFILL: (Stake.ROWS, of_the_copier("backfill", DAY)),
    OperationVerb.REFRESH: (Stake.ROWS, of_the_copier("stream", "refresh", "")),
    OperationVerb.TAKE_BACK: (Stake.ROWS, of_a_swapped_refresh),
    OperationVerb.ABANDON_REFRESH: (Stake.ROWS, of_an_open_refresh),
    OperationVerb.MAINTAIN: (Stake.NOTHING, of_a_table("maintain")),
    OperationVerb.ERASE: (Stake.ROWS, of_rows_to_erase),
    OperationVerb.REMOVE_ORPHANS: (Stake.NOTHING, of_a_table("remove-orphans")),
    OperationVerb.RESTORE_ORPHANS: (Stake.NOTHING, of_a_table("restore-orphans")),
}

EVERY_RUN = (
    *(OperationVerb.CONTINUE, OperationVerb.CLEAN, OperationVerb.RELEASE_BATCH, OperationVerb.SEPARATE_BATCH),
    *(OperationVerb.BACKFILL, OperationVerb.REFRESH, OperationVerb.TAKE_BACK, OperationVerb.ABANDON_REFRESH),
    *(OperationVerb.MAINTAIN, OperationVerb.RESTORE_ORPHANS),
)
"""The plans of the others are looked at where their commands are tested."""


def typed(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code of a command, its output and its errors."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return ended.value.code if isinstance(ended.value.code, int) else 0, said.out, said.err


def test_every_verb_is_walked() -> None:
    """Those of a quarantine need its rows, and Spark, which computes the plan: `test_replays` has them."""
    of_a_quarantine = {OperationVerb.REPLAY, OperationVerb.DISCARD}
    assert set(SCENES) == set(OperationVerb) - {OperationVerb.SHOW} - of_a_quarantine


def test_a_reset_discards_no_more_than_was_shown(copier: Copier) -> None:
    """Between the plan and the answer the stream may have run, and staged or recorded more."""
    settings = load_settings()
    stream = load_declarations(settings.pipelines).stream(copier.stream)
    shown = plan_reset(copier.ledger, stream, settings)
    assert (shown.rows, shown.seen.staged_batches) == (0, 0)
    source = copier.bench.catalog.load_table(f"{copier.stream}.rows").metadata.current_snapshot_id
    assert source is not None
    copier.bench.stage(1, [3, 4, 5], start_offsets=canonical_offsets({"rows": offset(source)}))

    with pytest.raises(UsageError, match="is another one than was shown"):
        reset_stream(copier.ledger, stream, settings, planned=shown.digest, asked_by="a test")

    now = plan_reset(copier.ledger, stream, settings)
    assert (now.rows, now.seen.staged_batches) == (3, 1)
    assert reset_stream(copier.ledger, stream, settings, planned=now.digest, asked_by="a test").generation == 2


def test_the_plan_of_a_reset_is_shown_while_the_stream_is_to_run(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    set_desired_state(copier.ledger, copier.stream, DesiredState.RUNNING)

    code, output, _ = typed(["stream", "reset", copier.stream, "--dry-run"], capsys)

    assert code == 1
    assert "Leave generation 1" in output
    assert f"refused (not_at_rest): Stream {copier.stream} is to run" in output
    code, _, errors = typed(["stream", "reset", copier.stream, "--yes"], capsys)
    assert (code, "is to run: its next run may begin at any moment" in errors) == (2, True)


def test_another_refresh_than_was_shown_is_neither_taken_back_nor_given_up(
    copier: Copier, request: pytest.FixtureRequest
) -> None:
    of_a_swapped_refresh(request)
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    stream = declarations.stream(copier.stream)
    shown = plan_way_back(copier.bench.catalog, copier.ledger, declarations, stream)
    of_a_swapped_refresh(request)
    before = copier.bench.target().metadata.current_snapshot_id

    with pytest.raises(UsageError, match="is another one than was shown"):
        take_back(copier.bench.catalog, copier.ledger, declarations, stream, asked_by="a test", planned=shown.digest)

    assert copier.bench.target().metadata.current_snapshot_id == before
    begun = copier.refresh()
    with pytest.raises(UsageError, match="is another one than was shown"):
        abandon(copier.bench.catalog, copier.ledger, stream, asked_by="a test", planned=shown.digest)
    newest = newest_refresh(copier.ledger, copier.stream)
    assert newest is not None
    assert (newest.number, newest.state) == (begun.number, RefreshState.BUILDING)


@pytest.mark.parametrize(
    ("state", "option"), [(RefreshState.TAKEN_BACK, "--take-back"), (RefreshState.ABANDONED, "--abandon")]
)
def test_a_command_that_was_interrupted_is_completed_by_typing_it_again(
    copier: Copier, capsys: pytest.CaptureFixture[str], state: RefreshState, option: str
) -> None:
    begun = copier.refresh()
    with copier.ledger.transaction() as connection:
        connection.execute(update(Refresh).where(Refresh.number == begun.number).values(state=state))

    code, output, errors = typed(["stream", "refresh", copier.stream, option], capsys)

    assert code == 0, errors
    assert f"Refresh {begun.number} of {copier.stream} is" in output
    newest = newest_refresh(copier.ledger, copier.stream)
    assert newest is not None
    assert newest.ended_at is not None


@pytest.mark.parametrize("verb", sampled(SCENES, EVERY_RUN, full=SCENES), ids=str)
def test_a_verb_has_the_one_form_of_plan_and_asks_where_something_is_at_stake(
    verb: OperationVerb, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    stake, scene_of = SCENES[verb]
    scene = scene_of(request)
    is_of_table = verb in (OperationVerb.MAINTAIN, OperationVerb.ERASE)
    about = EventSubject.TABLE if is_of_table else EventSubject.STREAM
    events = recent_events(scene.ledger, about, scene.subject, limit=10)

    code, output, errors = typed([*scene.words, "--dry-run", "--json"], capsys)

    document = json.loads(output)
    assert (code, set(document), document["dry_run"]) == (0, {"dry_run", "plans"}, True), errors
    (plan,) = document["plans"]
    assert set(plan) == KEYS
    assert (plan["verb"], plan["subject"], plan["at_stake"], plan["refusals"]) == (verb, scene.subject, stake, [])
    assert [set(step) for step in plan["steps"]] == [{"sentence", "command"}] * len(plan["steps"])
    text = typed([*scene.words, "--dry-run"], capsys)[1].splitlines()
    assert text[0].startswith(f"{verb} {scene.subject}")
    assert [line.partition(". ")[2] for line in text[1:-1]] == [step["sentence"] for step in plan["steps"]]
    if stake is not Stake.NOTHING:
        code, output, errors = typed(scene.words, capsys)
        assert (code, output) == (2, "")
        assert f"`{verb}` {ASKS}\nSee the plan with `--dry-run`, and give `--yes`." in errors
    assert recent_events(scene.ledger, about, scene.subject, limit=10) == events
    assert [item for item, _ in find_items(scene.ledger, limit=100) if item.subject == scene.subject] == []
