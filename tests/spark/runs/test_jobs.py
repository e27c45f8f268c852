"""The demo's streams as real drivers under `spark-submit`, killed and stopped on the way; increments by the queue."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from tests.fixtures.demo_tables import expected_gold, row_count, rows
from tests.fixtures.driver_uis import read_compressed, require_closed, require_readable
from tests.fixtures.spark_jobs import Job, Jobs, jobs_in, secrets_of, wait_until
from tests.fixtures.stack import Stack
from tests.fixtures.work import ask_for, serve, states_of
from tests.fixtures.workshop import Workshop

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations, all_tables
from sluice.demo.flight_streaming import replay
from sluice.demo.flights_data import FIRST_DAY, Span, drop_weather, flights_of, open_landing_folder, read_weather
from sluice.demo.flights_topic import FlightsTopic
from sluice.demo.local_platform import write_reference_data
from sluice.demo.replay_plan import MALFORMED_KINDS, PlannedRecord, RecordKind, ReplayPlan, plan_replay
from sluice.ledger.batches import recent_batches, totals
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.driver_access import find_driver_ui
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import admit_run, find_run, newest_run, record_end, record_process
from sluice.ledger.work_items import observe_item
from sluice.ledger.work_values import WorkState
from sluice.processes.host_processes import identity_of
from sluice.processes.process_identity import ProcessIdentity
from sluice.settings import KafkaConnection, Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice.work.requests import Increment

SPAN = Span(first_day=FIRST_DAY, days=3)
BATCH_LINE = re.compile(r" INFO batch (\d+): ")
CONTINUOUS = ("bronze_flights", "silver_flights", "gold_delays_by_carrier_hour")
PATIENCE_SECONDS = 300.0
IN_STORE = "s3a://landing/checkpoints"

of_the_chain = pytest.mark.drill
"""Four drivers cost as much as fifty streams in the session of the ring, and every test run has the demo."""


@pytest.fixture(scope="module")
def declarations(settings: Settings) -> Declarations:
    """The demo's declarations, as they are in the repository."""
    loaded = load_declarations(settings.pipelines)
    loaded.require_valid()
    return loaded


@pytest.fixture(scope="module")
def catalog(settings: Settings, declarations: Declarations) -> Catalog:
    """The catalog with the demo's tables, and what flights are joined with."""
    catalog = open_catalog(settings)
    for declaration in all_tables(declarations).values():
        create_or_evolve_table(catalog, declaration)
    write_reference_data(catalog)
    return catalog


@pytest.fixture(scope="module")
def ledger(settings: Settings) -> Iterator[Ledger]:
    """The ledger that the drivers write."""
    with open_ledger(settings.ledger_url.get_secret_value()) as opened:
        yield opened


@pytest.fixture(scope="module")
def topic(settings: Settings) -> FlightsTopic:
    """The topic of the flights."""
    connection = settings.connections["flights_kafka"]
    assert isinstance(connection, KafkaConnection)
    topic = FlightsTopic(connection=connection)
    topic.create()
    return topic


@pytest.fixture(scope="module")
def plan() -> ReplayPlan:
    """What is sent."""
    return plan_replay(flights_of(SPAN), span=SPAN, seed=7)


@pytest.fixture(scope="module")
def jobs(services: Stack, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Starts drivers of this module."""
    with jobs_in(settings, services.environment(), tmp_path_factory.mktemp("jobs")) as started:
        yield started


@pytest.fixture
def platform(spark: SparkSession, settings: Settings, ledger: Ledger) -> Workshop:
    """The demo's streams in the session of the ring; their checkpoints lie in the object store."""
    in_store = settings.model_copy(update={"checkpoints": IN_STORE})
    return Workshop(spark=spark, settings=in_store, ledger=ledger, namespace="bronze")


def send(records: tuple[PlannedRecord, ...], topic: FlightsTopic) -> None:
    """Send records as fast as Kafka takes them."""
    arguments = {"plan_name": "test", "hours_per_second": None, "report": lambda _: None, "is_stopped": lambda: False}
    assert replay(records, topic=topic, **arguments) == len(records)  # type: ignore[arg-type]  # a dict of named ones


@pytest.fixture(scope="module")
def chain(
    jobs: Jobs, catalog: Catalog, ledger: Ledger, topic: FlightsTopic, plan: ReplayPlan, declarations: Declarations
) -> dict[str, Job]:
    """The three continuous streams after they have worked through everything; silver's driver was killed once, and its
    state lies in the object store.
    """
    events = (jobs.folder / "new" / "events").as_uri()
    place = {"silver_flights": {"SLUICE_CHECKPOINTS": IN_STORE, "SLUICE_EVENT_LOGS": events}}
    drivers = {name: jobs.start_stream(declarations.stream(name), ledger, **place.get(name, {})) for name in CONTINUOUS}
    half = len(plan.on_time) // 2
    send(plan.on_time[:half], topic)
    wait_until(lambda: row_count(catalog, "silver.flights") > 0, within_seconds=PATIENCE_SECONDS)
    killed = drivers["silver_flights"]
    killed.kill()
    assert killed.run is not None
    record_end(ledger, killed.run.run_id, state=RunState.LOST, exit_code=None, reason="killed by a test")
    send(plan.on_time[half:], topic)
    drivers["silver_flights"] = jobs.start_stream(
        declarations.stream("silver_flights"), ledger, **place["silver_flights"]
    )
    flights = sum(record.kind is RecordKind.FLIGHT for record in plan.on_time)
    wait_until(lambda: row_count(catalog, "silver.flights") >= flights, within_seconds=PATIENCE_SECONDS)
    newest = max(flight.departure for flight in flights_of(SPAN))
    wait_until(lambda: has_watermark_near(ledger, newest), within_seconds=PATIENCE_SECONDS)
    send(plan.late_set, topic)
    late = len(plan.late_set)
    wait_until(
        lambda: totals(ledger, "silver_flights").late_rows >= late and gold_flights(catalog) >= flights,
        within_seconds=PATIENCE_SECONDS,
    )
    return drivers


def has_watermark_near(ledger: Ledger, newest: datetime) -> bool:
    """Whether silver's watermark stands where the newest departure puts it."""
    (batch, *_) = recent_batches(ledger, "silver_flights", limit=1)
    return batch.watermark is not None and batch.watermark >= newest - timedelta(hours=6, minutes=1)


def gold_flights(catalog: Catalog) -> int:
    """The flights that gold has counted."""
    return int(rows(catalog, "gold.delays_by_carrier_hour")["flights"].sum())


@of_the_chain
def test_every_record_is_in_bronze_once(chain: dict[str, Job], catalog: Catalog, plan: ReplayPlan) -> None:
    bronze = rows(catalog, "bronze.flights")

    assert bronze.height == len(plan.records)
    assert bronze.select("topic", "partition", "offset").is_unique().all()
    for (_,), part in bronze.group_by("partition"):
        assert sorted(part["offset"]) == list(range(part.height))


@of_the_chain
def test_every_flight_is_in_silver_once_though_its_driver_was_killed(
    chain: dict[str, Job], catalog: Catalog, plan: ReplayPlan
) -> None:
    silver = rows(catalog, "silver.flights")
    sent = {record.flight.identity for record in plan.on_time if record.kind is RecordKind.FLIGHT}

    found = [
        f"{row['time_hour'].astimezone(UTC):%Y-%m-%dT%HZ}/{row['carrier']}/{row['flight']}"
        for row in silver.iter_rows(named=True)
    ]
    assert len(found) == len(set(found))
    assert set(found) == sent
    assert silver["airline"].null_count() == 0


@of_the_chain
def test_malformed_records_are_in_the_quarantine_once(
    chain: dict[str, Job], catalog: Catalog, plan: ReplayPlan
) -> None:
    refused = rows(catalog, "quarantine.silver_flights")

    assert refused.height == sum(plan.counts[kind] for kind in MALFORMED_KINDS)
    assert refused["position"].is_unique().all()


@of_the_chain
def test_gold_equals_what_polars_computes(chain: dict[str, Job], catalog: Catalog, plan: ReplayPlan) -> None:
    on_time = [record.flight for record in plan.on_time if record.kind is RecordKind.FLIGHT]
    expected = expected_gold(on_time)

    gold = rows(catalog, "gold.delays_by_carrier_hour").sort("carrier", "window_start").select(expected.columns)

    assert gold.with_columns(pl.col("window_start").dt.convert_time_zone("UTC")).equals(
        expected.with_columns(pl.col("window_start").dt.convert_time_zone("UTC"))
    )


@of_the_chain
def test_the_late_set_is_counted_as_late(chain: dict[str, Job], ledger: Ledger, plan: ReplayPlan) -> None:
    assert totals(ledger, "silver_flights").late_rows == len(plan.late_set) > 0


@of_the_chain
def test_a_driver_logs_each_batch_in_one_line_and_little_else(chain: dict[str, Job]) -> None:
    """Beside the batches: the JVM's word on its modules, the run, the parts of the state, and what took very long."""
    for name, job in chain.items():
        lines = job.log.read_text(encoding="utf-8").splitlines()
        batches = [told[1] for line in lines if (told := BATCH_LINE.search(line))]
        others = [line for line in lines if not BATCH_LINE.search(line)]
        assert len(batches) >= 2
        assert len(set(batches)) == len(batches)
        assert len(others) <= 12, (name, "\n".join(others))
        assert sum(" WARN " in line for line in others) <= 3, (name, "\n".join(others))
        assert not any("[Stage" in line for line in lines)


@of_the_chain
def test_no_secret_is_an_argument_or_in_a_log(chain: dict[str, Job], services: Stack) -> None:
    secrets = secrets_of(services)
    for job in chain.values():
        arguments = job.arguments()
        assert f"--run-id={job.run.run_id}" in arguments if job.run is not None else False
        for secret in secrets:
            assert not any(secret in text for text in (*arguments, job.log.read_text()))


@of_the_chain
def test_spark_s_ui_of_a_driver_answers_only_to_the_key_of_its_run(chain: dict[str, Job], ledger: Ledger) -> None:
    job, ui = chain["silver_flights"], find_driver_ui(ledger, "silver_flights")
    assert ui is not None
    assert job.run is not None
    assert ui.run_id == job.run.run_id
    assert find_driver_ui(ledger, "bronze_flights") is None, "it does not declare one"

    shown = require_readable(ui)

    require_closed(ui)
    kept = (*job.arguments(), job.log.read_text(), *shown, *job.python().environ().values())
    assert not any(ui.key.rstrip("=") in text for text in kept)


@of_the_chain
def test_drivers_stop_when_it_is_requested_and_when_they_are_signalled(
    chain: dict[str, Job], ledger: Ledger, declarations: Declarations
) -> None:
    bronze, silver, gold = (chain[name] for name in CONTINUOUS)
    os.kill(bronze.process.pid, signal.SIGTERM)  # the JVM, which is all that others see of a driver
    silver.python().send_signal(signal.SIGTERM)
    set_desired_state(ledger, "gold_delays_by_carrier_hour", DesiredState.STOPPED, requested_by="a test")

    assert [job.wait() for job in (bronze, silver, gold)] == [0, 0, 0]

    ended = [find_run(ledger, job.run.run_id) for job in (bronze, silver, gold) if job.run is not None]
    assert [(run.state, run.exit_code, run.reason) for run in ended] == [
        (RunState.FINISHED, 0, "stopped by a signal"),
        (RunState.FINISHED, 0, "stopped by a signal"),
        (RunState.FINISHED, 0, "stopped as requested"),
    ]
    for name, job in chain.items():
        lines = job.log.read_text().splitlines()
        told = [line for line in lines if BATCH_LINE.search(line)]
        assert job.run is not None
        recorded = [batch for batch in recent_batches(ledger, name, limit=10_000) if batch.run_id == job.run.run_id]
        assert len(told) == len(recorded) > 0
        assert not [line for line in lines if " ERROR " in line or "Traceback" in line]


@of_the_chain
def test_a_driver_that_has_ended_left_its_event_log_without_secrets(
    chain: dict[str, Job], jobs: Jobs, ledger: Ledger, services: Stack
) -> None:
    ui = find_driver_ui(ledger, "silver_flights")
    assert ui is not None
    (log,) = (jobs.folder / "new" / "events" / f"eventlog_v2_{ui.application}").glob("events_1_*.zstd")

    written = read_compressed(log)

    assert "SparkListenerApplicationEnd" in written
    assert "QueryProgressEvent" in written
    assert not any(secret in written for secret in (*secrets_of(services), ui.key.rstrip("=")))


@of_the_chain
def test_increments_bring_the_weather_beside_the_delays(
    chain: dict[str, Job], platform: Workshop, catalog: Catalog, ledger: Ledger, settings: Settings
) -> None:
    days = drop_weather(open_landing_folder(settings), ends_at=SPAN.ends_at)
    assert len(days) > 0
    for name in ("bronze_weather", "gold_delays_by_weather"):
        item = ask_for(platform, Increment(stream=name))
        serve(platform, [item])
        assert states_of(platform, [item]) == [WorkState.DONE]

    weather = read_weather()
    hours = pl.DataFrame(weather).filter(pl.col("time_hour").dt.date().is_in(days)).height
    assert row_count(catalog, "bronze.weather") == hours
    gold = rows(catalog, "gold.delays_by_weather")
    assert gold.height == hours
    assert gold.select("origin", "time_hour").is_unique().all()
    silver = rows(catalog, "silver.flights").with_columns(pl.col("time_hour").dt.convert_time_zone("UTC"))
    beside = silver.filter(pl.col("time_hour").dt.date().is_in(days)).join(
        gold.with_columns(pl.col("time_hour").dt.convert_time_zone("UTC")), on=["origin", "time_hour"], how="semi"
    )
    assert gold["flights"].sum() == beside.height > 0
    assert gold["delayed"].sum() == (beside["dep_delay"] >= 15).sum()
    for name in ("bronze_weather", "gold_delays_by_weather"):
        run = newest_run(ledger, name)
        assert run is not None
        assert (run.state, run.exit_code) == (RunState.FINISHED, 0)
        assert run.process is not None
        assert totals(ledger, name).input_rows == hours


def test_an_increment_beside_a_live_run_fails_and_says_which(
    platform: Workshop, catalog: Catalog, ledger: Ledger, declarations: Declarations
) -> None:
    stream = declarations.stream("bronze_weather")
    live = admit_run(
        ledger, stream=stream.name, mode="incremental", declaration_digest=stream.digest, launched_by="another"
    )
    record_process(ledger, live.run_id, identity_of(os.getpid()), None)
    item = ask_for(platform, Increment(stream=stream.name))
    try:
        serve(platform, [item])
    finally:
        record_end(ledger, live.run_id, state=RunState.FINISHED, exit_code=0, reason="the test is over")
    seen = observe_item(ledger, item)
    assert seen.state is WorkState.FAILED
    last = (seen.failure or "").splitlines()[-1]
    assert last.startswith(f"sluice: failed: RunAlreadyLiveError: Stream bronze_weather has a live run: {live.run_id}")


def test_an_increment_takes_the_place_of_a_run_whose_driver_is_gone_and_without_anything_new_is_no_batch(
    platform: Workshop, catalog: Catalog, ledger: Ledger, declarations: Declarations
) -> None:
    stream = declarations.stream("bronze_weather")
    before = totals(ledger, stream.name).batches
    lost = admit_run(
        ledger, stream=stream.name, mode="incremental", declaration_digest=stream.digest, launched_by="another"
    )
    here = identity_of(os.getpid())
    gone = ProcessIdentity(host=here.host, pid=2**22 - 1, started_at_seconds=here.started_at_seconds)
    record_process(ledger, lost.run_id, gone, Path("nowhere.log"))

    item = ask_for(platform, Increment(stream=stream.name))
    serve(platform, [item])

    assert states_of(platform, [item]) == [WorkState.DONE]
    assert (find_run(ledger, lost.run_id).state, find_run(ledger, lost.run_id).reason) == (
        RunState.LOST,
        "its driver is gone",
    )
    assert totals(ledger, stream.name).batches == before


@pytest.mark.full  # every run signals an application (`test_work_application.py`)
def test_a_driver_that_is_signalled_stops_after_its_batch_and_shows_no_secret(
    jobs: Jobs, catalog: Catalog, ledger: Ledger, topic: FlightsTopic, plan: ReplayPlan, services: Stack
) -> None:
    stream = load_declarations(jobs.settings.pipelines).stream("bronze_flights")
    rows_before = row_count(catalog, "bronze.flights")
    send(plan.on_time[:50], topic)
    job = jobs.start_stream(stream, ledger)
    wait_until(lambda: row_count(catalog, "bronze.flights") >= rows_before + 50, within_seconds=PATIENCE_SECONDS)
    arguments = job.arguments()

    os.kill(job.process.pid, signal.SIGTERM)  # the JVM, which is all that others see of a driver

    assert job.wait() == 0
    assert job.run is not None
    ended = find_run(ledger, job.run.run_id)
    assert (ended.state, ended.exit_code, ended.reason) == (RunState.FINISHED, 0, "stopped by a signal")
    for secret in secrets_of(services):
        assert not any(secret in text for text in (*arguments, job.log.read_text()))
