"""A driver that hangs cannot hide its lag: a real Kafka is asked, a real ledger remembers, and the run is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import text
from tests.fakes.launcher import FakeLauncher
from tests.fixtures.reconciling import reconcile
from tests.fixtures.stack import Stack
from tests.fixtures.streams import continuous_stream
from tests.fixtures.successors import runs_since

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.launching.launcher_port import LaunchRequest
from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.progress_samples import ProgressSample
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.runs import beat, find_run
from sluice.ledger.stream_records import read_streams
from sluice.settings import KafkaConnection, Settings
from sluice.sources.kafka_clients import client_settings
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.limits import STOPPED_WITHIN
from sluice.supervision.progress_decision import BECAUSE_STALLED, ProgressState
from sluice.supervision.reconciler import reconcile_all
from sluice.supervision.source_watch import watch_progress, writers_that_defer
from sluice.supervision.stream_status import observe_rows
from sluice.supervision.supervision_values import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import Supervisor, read_to_judge, supervise

STALLED_FOR = timedelta(minutes=30)
UNPAUSED = DagObservation(airflow="ours", is_paused=False)


@pytest.fixture
def settings(services_stack: Stack) -> Settings:
    """The settings of a stack that runs."""
    return services_stack.settings()


@pytest.fixture
def topic(settings: Settings) -> Iterator[str]:
    """A topic of one partition with 30 records."""
    connection = settings.connections["flights_kafka"]
    assert isinstance(connection, KafkaConnection)
    name = f"t{uuid4().hex}"
    admin = AdminClient(client_settings(connection))
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    producer = Producer(client_settings(connection))
    for number in range(30):
        producer.produce(name, value=str(number))
    assert producer.flush(30) == 0
    yield name
    admin.delete_topics([name])[name].result()


@pytest.fixture
def launcher(ledger: Ledger) -> FakeLauncher:
    """Drivers that hang: they do nothing that they are asked for."""
    return FakeLauncher(ledger, ignores_requests=True)


@pytest.fixture
def supervisor(ledger: Ledger, launcher: FakeLauncher, settings: Settings, tmp_path: Path) -> Supervisor:
    """A supervisor that looks at the real sources."""

    def request_for(wanted: LoadedStream, run: RunObservation) -> LaunchRequest:
        return LaunchRequest(run_id=run.run_id, stream=wanted.name, command=("true",), log_file=tmp_path / run.run_id)

    heads = SourceHeads(settings)
    return Supervisor(ledger=ledger, launcher=launcher, request_for=request_for, launched_by="a test", heads=heads)


def reading(topic: str, **supervision: Any) -> LoadedStream:
    """A stream that reads the topic from its beginning."""
    return continuous_stream(
        inputs={"records": {"stream": {"kafka": {"connection": "flights_kafka", "topics": [topic]}}}},
        supervision=supervision,
    )


def declaring(wanted: LoadedStream) -> Declarations:
    """A folder that declares one stream."""
    return Declarations(
        folder=Path("/pipelines"),
        streams={wanted.name: wanted},
        tables={},
        problems=(),
        stream_names=(wanted.name,),
        table_names=(),
    )


def kept_samples(ledger: Ledger) -> tuple[ProgressSample, ...]:
    """What is remembered of the looks at the sources."""
    return read_streams(ledger, ["flights"], with_progress=True)["flights"].samples


def bring_batch(ledger: Ledger, run: RunObservation, topic: str, *, number: int, up_to: int) -> None:
    """Let a driver deliver a batch and be heard."""
    batch = BatchObservation(
        key=PublicationKey(stream="flights", generation=1, batch=number),
        run_id=run.run_id,
        started_at=datetime.now(UTC),
        duration_ms=10,
        input_rows=10,
        published_rows={"rows": 10},
        end_offsets={"records": {topic: {"0": up_to}}},
    )
    beat(ledger, run.run_id)
    record_batch(ledger, batch)


def let_time_pass(ledger: Ledger, by: timedelta) -> None:
    """Everything that was seen was seen so much earlier; only the heartbeat is fresh, as of a driver that hangs."""
    statements = (
        "UPDATE sluice.progress_samples SET observed_at = observed_at - :by",
        "UPDATE sluice.batches SET recorded_at = recorded_at - :by",
        "UPDATE sluice.runs SET launched_at = launched_at - :by",
    )
    with ledger.transaction() as connection:
        for statement in statements:
            connection.execute(text(statement), {"by": by})


def started(supervisor: Supervisor, wanted: LoadedStream, topic: str) -> RunObservation:
    """A run with one batch, which then brings no other."""
    run = supervise(supervisor, wanted).run
    assert run is not None
    bring_batch(supervisor.ledger, run, topic, number=0, up_to=10)
    return run


def test_a_hung_driver_is_seen_by_what_it_leaves_unread_and_replaced_once(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger, topic: str
) -> None:
    wanted = reading(topic, on_stall="restart")
    run = started(supervisor, wanted, topic)
    first = reconcile(supervisor, wanted, dag=UNPAUSED)
    assert (first.supervised.decision.reason, first.acted) == (SupervisionReason.HEARTBEAT_FRESH, False)
    (sample,) = kept_samples(ledger)
    assert (sample.generation, sample.batch, sample.read_rows, sample.unread_rows) == (1, 0, 10, 20)

    let_time_pass(ledger, STALLED_FOR)
    reconcile(supervisor, wanted, dag=UNPAUSED)
    asked = find_run(ledger, run.run_id)
    assert asked.end_asked_because == BECAUSE_STALLED
    assert observe_rows([wanted], ledger=ledger, launcher=launcher, heads=None)[0].verdict.state == "stopping"

    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.runs SET end_asked_at = end_asked_at - :by"), {"by": STOPPED_WITHIN})
    reconcile(supervisor, wanted, dag=UNPAUSED)
    assert len(launcher.kills) == 1
    again = supervise(supervisor, wanted)
    assert again.run is not None
    assert again.run.run_id != run.run_id

    beat(ledger, again.run.run_id)
    reconcile(supervisor, wanted, dag=UNPAUSED)
    let_time_pass(ledger, STALLED_FOR)
    assert supervisor.heads is not None
    known = read_to_judge(ledger, [wanted], with_progress=True)[wanted.name]
    judged = watch_progress(ledger, supervisor.heads, wanted, known)
    assert judged is not None
    assert (judged.state, judged.restarts) == (ProgressState.STALLED, False)
    assert "A restart has not helped before" in judged.explanation


def test_a_stalled_stream_is_reported_and_left_alone_when_nothing_else_is_declared(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger, topic: str
) -> None:
    wanted = reading(topic)
    run = started(supervisor, wanted, topic)
    reconcile(supervisor, wanted, dag=UNPAUSED)
    let_time_pass(ledger, STALLED_FOR)
    done = reconcile(supervisor, wanted, dag=UNPAUSED)
    assert (done.supervised.decision.action, done.acted) == (SupervisionAction.ADOPT, False)
    assert done.alert.startswith("20 rows have waited for 30 min")
    assert find_run(ledger, run.run_id).end_asked_at is None
    (alert,) = reconcile_all(supervisor, declaring(wanted), observe_dag=lambda _: UNPAUSED, number=0)
    assert alert.reason == "stalled"
    verdict = observe_rows([wanted], ledger=ledger, launcher=launcher, heads=None)[0].verdict
    assert (verdict.state, verdict.is_healthy) == ("stalled", False)
    assert "20 rows have waited for 30 min" in verdict.explanation

    bring_batch(ledger, run, topic, number=1, up_to=30)
    assert reconcile_all(supervisor, declaring(wanted), observe_dag=lambda _: UNPAUSED, number=0) == ()
    verdict = observe_rows([wanted], ledger=ledger, launcher=launcher, heads=None)[0].verdict
    assert (verdict.state, verdict.is_healthy) == ("idle", True)


def test_looks_older_than_a_day_are_forgotten(supervisor: Supervisor, ledger: Ledger, topic: str) -> None:
    wanted = reading(topic)
    started(supervisor, wanted, topic)
    reconcile(supervisor, wanted, dag=UNPAUSED)
    let_time_pass(ledger, timedelta(days=2))
    reconcile(supervisor, wanted, dag=UNPAUSED)
    assert len(kept_samples(ledger)) == 1


@pytest.mark.parametrize("action", ["defer_maintenance", "alert"])
def test_a_late_stream_defers_the_maintenance_of_its_table_when_it_is_declared_so(
    supervisor: Supervisor, ledger: Ledger, topic: str, action: str
) -> None:
    wanted = reading(topic, max_lag={"rows": 19, "action": action})
    declared = declaring(wanted)
    run = started(supervisor, wanted, topic)
    assert writers_that_defer(ledger, declared, "bronze.flights") == (), "nobody has looked yet"
    done = reconcile(supervisor, wanted, dag=UNPAUSED)
    assert done.alert == "It is late: 20 rows are unread, 19 are allowed."
    expected = ("flights",) if action == "defer_maintenance" else ()
    assert writers_that_defer(ledger, declared, "bronze.flights") == expected
    assert writers_that_defer(ledger, declared, "bronze.weather") == ()
    bring_batch(ledger, run, topic, number=1, up_to=11)
    reconcile(supervisor, wanted, dag=UNPAUSED)
    assert writers_that_defer(ledger, declared, "bronze.flights") == ()


def test_a_late_run_is_replaced_when_it_is_declared_so_and_the_next_one_is_given_its_time(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger, topic: str
) -> None:
    launcher.ignores_requests = False
    wanted = reading(topic, max_lag={"rows": 10, "action": "restart"}, restart={"stable_after": "10 minutes"})
    run = started(supervisor, wanted, topic)
    assert reconcile(supervisor, wanted, dag=UNPAUSED).alert == "It is late: 20 rows are unread, 10 are allowed."
    assert find_run(ledger, run.run_id).end_asked_at is None, "it has not been up for `stable_after`"

    let_time_pass(ledger, timedelta(minutes=11))
    bring_batch(ledger, run, topic, number=1, up_to=12)
    reconcile(supervisor, wanted, dag=UNPAUSED)
    assert find_run(ledger, run.run_id).end_asked_because == "it is late"
    assert beat(ledger, run.run_id).desired_state is DesiredState.STOPPED, (
        "the driver is told, and ends after its batch"
    )
    assert (launcher.kills, len(launcher.requests)) == ([], 1), "nothing starts beside it"

    assert run.process is not None
    launcher.end(run.process, exit_code=0)
    again = supervise(supervisor, wanted)
    assert (again.decision.action, again.decision.reason) == (
        SupervisionAction.LAUNCH,
        SupervisionReason.WANTED_AGAIN,
    )
    assert again.decision.failures == 0, "that end was asked for"
    assert again.run is not None
    assert runs_since(ledger, run) == 1
    bring_batch(ledger, again.run, topic, number=2, up_to=13)
    reconcile(supervisor, wanted, dag=UNPAUSED)
    assert find_run(ledger, again.run.run_id).end_asked_at is None, "a young run is not replaced for being late"
    assert len(launcher.requests) == 2
