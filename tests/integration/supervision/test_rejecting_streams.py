"""A stream that rejects every row: alike for command line, pages, reconciler and task; and the lag of increments."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.fakes.launcher import FakeLauncher
from tests.fixtures.streams import continuous_stream
from tests.integration.supervision.test_reconcile_all import declared, passed, started

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.generations import current_generation
from sluice.ledger.progress_samples import LagObservation
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import admit_run, record_end
from sluice.ledger.stream_records import read_stream
from sluice.ledger.stream_troubles import all_troubles
from sluice.pages.stream_lines import observe_streams
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.alerts import report_good_increment
from sluice.supervision.stream_status import observe_rows
from sluice.supervision.stream_verdict import StreamState
from sluice.supervision.supervisor import Supervisor

CONTINUOUS = continuous_stream()
INCREMENT = continuous_stream(mode="incremental", trigger=None, schedule={"cron": "@hourly"})
NOTHING: Any = None


def deliver(
    ledger: Ledger, run: RunObservation, number: int, *, refused: int, rejected_files: tuple[str, ...] = ()
) -> None:
    """Record a batch of 30 rows, of which so many were rejected."""
    batch = BatchObservation(
        key=PublicationKey(stream=run.stream, generation=run.generation, batch=number),
        run_id=run.run_id,
        started_at=datetime.now(UTC),
        duration_ms=1,
        input_rows=30,
        published_rows={"rows": 30 - refused},
        refused_rows=refused,
        rejected_files=rejected_files,
    )
    assert record_batch(ledger, batch)


def ended_increment(ledger: Ledger, *, digest: str = INCREMENT.digest) -> RunObservation:
    """An increment that ended well."""
    admitted = admit_run(ledger, stream="flights", mode="incremental", declaration_digest=digest, launched_by="a test")
    return record_end(ledger, admitted.run_id, state=RunState.FINISHED, exit_code=0, reason="no more input")


def test_a_person_is_alerted_until_a_row_is_good(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor, CONTINUOUS)
    deliver(ledger, run, 0, refused=0)
    assert passed(supervisor, declared(CONTINUOUS)) == {}
    deliver(ledger, run, 1, refused=30)

    alert = passed(supervisor, declared(CONTINUOUS))["flights"]

    assert (alert.reason, alert.is_new) == ("all rejected", True)
    assert "It rejected all 30 rows of batch 1:1" in alert.sentence
    assert passed(supervisor, declared(CONTINUOUS))["flights"].is_new is False
    assert states(ledger, launcher, CONTINUOUS) == {StreamState.ALL_REJECTED}
    deliver(ledger, run, 2, refused=29)
    assert passed(supervisor, declared(CONTINUOUS)) == {}
    assert all_troubles(ledger) == ()


def test_one_bad_record_of_a_quiet_topic_is_settled_by_a_request(supervisor: Supervisor, ledger: Ledger) -> None:
    run = started(supervisor, CONTINUOUS)
    deliver(ledger, run, 0, refused=30)
    assert passed(supervisor, declared(CONTINUOUS))["flights"].reason == "all rejected"

    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")

    assert passed(supervisor, declared(CONTINUOUS)) == {}
    assert all_troubles(ledger) == ()
    for number in (1, 2):
        deliver(ledger, run, number, refused=30)
        assert passed(supervisor, declared(CONTINUOUS))["flights"].is_new is (number == 1), "one alert, not one a batch"
    assert [trouble.occasion for trouble in all_troubles(ledger)] == ["1:1"]


def test_a_rejected_file_among_good_ones_is_alerted_until_it_is_settled(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor, CONTINUOUS)
    current_generation(ledger, "flights", checkpoints_root="file:///checkpoints")
    deliver(ledger, run, 0, refused=10, rejected_files=("s3a://landing/alien.csv", "s3a://landing/odd.csv"))
    for number in range(1, 25):
        deliver(ledger, run, number, refused=0)

    alert = passed(supervisor, declared(CONTINUOUS))["flights"]

    assert "the file s3a://landing/alien.csv, and of 1 other files, in batch 1:0" in alert.sentence
    assert passed(supervisor, declared(CONTINUOUS))["flights"].is_new is False
    assert states(ledger, launcher, CONTINUOUS) == {StreamState.ALL_REJECTED}
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    assert passed(supervisor, declared(CONTINUOUS)) == {}
    assert all_troubles(ledger) == ()


def test_one_bad_record_of_a_quiet_topic_is_settled_by_another_declaration(ledger: Ledger) -> None:
    """However many runs of it there were since."""
    deliver(ledger, ended_increment(ledger), 0, refused=30)
    for _ in range(3):
        report_good_increment(ledger, "flights", by="its task")
        assert [trouble.occasion for trouble in all_troubles(ledger)] == ["1:0"]
        ended_increment(ledger)
    for _ in range(3):
        ended_increment(ledger, digest="another")
        report_good_increment(ledger, "flights", by="its task")
        assert all_troubles(ledger) == ()


def states(ledger: Ledger, launcher: FakeLauncher, stream: LoadedStream) -> set[StreamState]:
    """The state on the command line and on the pages."""
    row = observe_rows([stream], ledger=ledger, launcher=launcher, heads=None)[0]
    seen = observe_streams(ledger, declared(stream), launcher=launcher, may_read=frozenset, with_history=False)
    assert not row.verdict.is_healthy
    assert [line.next_step for line in seen.unhealthy] == [row.verdict.next_step] != [""]
    return {row.verdict.state, *(line.state for line in seen.lines)}


def test_an_increment_that_ended_well_and_rejected_every_row_leaves_an_alert(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = ended_increment(ledger)
    deliver(ledger, run, 0, refused=30)

    report_good_increment(ledger, "flights", by="its task")
    report_good_increment(ledger, "flights", by="its task")
    passed(supervisor, declared(INCREMENT))

    assert states(ledger, launcher, INCREMENT) == {StreamState.ALL_REJECTED}
    (trouble,) = all_troubles(ledger)
    assert (trouble.stream, trouble.reason) == ("flights", "all rejected")
    assert actions(ledger) == ["alert"], "a second one is no news"
    deliver(ledger, run, 1, refused=0)
    report_good_increment(ledger, "flights", by="its task")
    assert all_troubles(ledger) == ()
    assert actions(ledger) == ["alert", "recover"]


def actions(ledger: Ledger) -> list[str]:
    """What happened to the stream that a person was alerted to, oldest first."""
    events = recent_events(ledger, EventSubject.STREAM, "flights", limit=20)
    return [event.action for event in reversed(events) if event.action in ("alert", "recover")]


class Sources(SourceHeads):
    """Sources of which is known what is unread."""

    unread: LagObservation | Exception = LagObservation(rows=30)

    def observe_lag(self, *_: Any, **__: Any) -> LagObservation:
        """What is unread; an error of whatever kind where it is one."""
        if isinstance(self.unread, Exception):
            raise self.unread
        return self.unread


def test_the_lag_of_an_increment_is_recorded_once_it_has_run(
    ledger: Ledger, supervisor: Supervisor, launcher: FakeLauncher
) -> None:
    heads = Sources(NOTHING)
    watching = Supervisor(
        ledger=ledger, launcher=launcher, request_for=supervisor.request_for, launched_by="a test", heads=heads
    )
    assert passed(watching, declared(INCREMENT)) == {}
    assert read_stream(ledger, "flights").samples == (), "it has no generation yet"
    ended_increment(ledger)
    current_generation(ledger, "flights", checkpoints_root="file:///checkpoints")

    assert passed(watching, declared(INCREMENT)) == {}

    (sample,) = read_stream(ledger, "flights").samples
    assert sample.known_undone == 30
    seen = observe_streams(ledger, declared(INCREMENT), launcher=launcher, may_read=frozenset, with_history=False)
    assert [(line.lag_rows, line.is_waiting, line.waits_for) for line in seen.lines] == [
        (30, True, "its time (@hourly)")
    ]
    heads.unread = RuntimeError("the broker is away")
    assert passed(watching, declared(INCREMENT)) == {}, "no alert: the increment itself fails"
