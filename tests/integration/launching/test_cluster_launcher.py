"""Drivers on a cluster: each moment at which a launch may break off, what silence means, and no secret seen."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.cluster import IGNORES_ITS_LEASE, FakeCluster, fake_conf
from tests.fixtures.streams import continuous_stream

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LaunchError
from sluice.failure_reasons import FailureReason
from sluice.launching import cluster_launcher as launcher_room
from sluice.launching.cluster_launcher import ClusterLauncher
from sluice.launching.launcher_port import ApplicationState, DriverTag, LaunchRequest, WorkTag, tag_in
from sluice.launching.submission import Submission
from sluice.ledger import work_items
from sluice.ledger.applications import beat, begin_application, find_application
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import admit_run, find_run, record_end
from sluice.ledger.stream_records import read_stream
from sluice.ledger.work_values import NewItem, Pool, WorkKind
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.supervision import supervisor as supervisor_module
from sluice.supervision.supervision_values import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import Supervisor, observe, supervise

WANTED = continuous_stream(restart={"attempts": 2, "first_delay": "1 hour", "longest_delay": "1 day"})


class BrokenOffError(BaseException):
    """The launching process dies here. Nothing that the launcher catches."""


@pytest.fixture
def cluster(ledger: Ledger) -> FakeCluster:
    """A cluster in memory, which outlives every launcher."""
    return FakeCluster(ledger)


@pytest.fixture
def make_launcher(ledger: Ledger, ledger_url: str, cluster: FakeCluster) -> Callable[..., ClusterLauncher]:
    """Makes a launcher as each process has one of its own."""

    def make(submit: Callable[[Submission], None] = cluster.submit) -> ClusterLauncher:
        return ClusterLauncher(
            connection="a_cluster",
            ledger=ledger,
            ledger_url=ledger_url,
            cluster=cluster,
            conf_for=fake_conf,
            submit=submit,
        )

    return make


MakeLauncher = Callable[..., ClusterLauncher]


@pytest.fixture
def run(ledger: Ledger) -> RunObservation:
    """An admitted run of the wanted stream."""
    return admit_run(
        ledger, stream=WANTED.name, mode="continuous", declaration_digest=WANTED.digest, launched_by="a test"
    )


def ask(run: RunObservation, *arguments: str, environment: dict[str, str] | None = None) -> LaunchRequest:
    """The request for a run."""
    return LaunchRequest(
        run_id=run.run_id,
        stream=run.stream,
        command=("driver.py", *arguments),
        environment=environment or {},
        log_file=Path("/nowhere/run.log"),
        connection="a_cluster",
        conf={"spark.driver.memory": "512m"},
    )


def process_of(ledger: Ledger, run: RunObservation) -> ProcessIdentity:
    """What the ledger has bound the run to."""
    process = find_run(ledger, run.run_id).process
    assert process is not None
    return process


def supervisor_with(ledger: Ledger, launcher: ClusterLauncher) -> Supervisor:
    """A supervisor in a process of its own."""

    def request_for(wanted: LoadedStream, run: RunObservation) -> LaunchRequest:
        assert wanted is WANTED
        return ask(run)

    return Supervisor(ledger=ledger, launcher=launcher, request_for=request_for, launched_by="a test")


def test_a_launch_that_breaks_off_after_the_submission_is_adopted(
    ledger: Ledger, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    def submit(submission: Submission) -> None:
        cluster.submit(submission)
        raise BrokenOffError

    with pytest.raises(BrokenOffError):
        supervise(supervisor_with(ledger, make_launcher(submit)), WANTED)
    adopted = supervise(supervisor_with(ledger, make_launcher()), WANTED)
    assert (adopted.decision.action, adopted.decision.reason) == (SupervisionAction.ADOPT, SupervisionReason.STARTING)
    assert adopted.run is not None
    assert make_launcher().observe(process_of(ledger, adopted.run)) is ProcessState.ALIVE
    assert len(cluster.submissions) == 1


def test_a_launch_that_breaks_off_before_the_submission_is_launched_again_when_nothing_can_come_any_more(
    ledger: Ledger, cluster: FakeCluster, make_launcher: MakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "EXIT_RECORD_SECONDS", 0.0)

    def submit(submission: Submission) -> None:
        raise BrokenOffError

    with pytest.raises(BrokenOffError):
        supervise(supervisor_with(ledger, make_launcher(submit)), WANTED)
    waiting = supervise(supervisor_with(ledger, make_launcher()), WANTED)
    assert waiting.seen.process is ProcessState.UNKNOWN
    assert cluster.submissions == []
    monkeypatch.setattr(launcher_room, "SUBMITTED_WITHIN_SECONDS", 0.0)
    restarted = supervise(supervisor_with(ledger, make_launcher()), WANTED)
    assert restarted.decision.action is SupervisionAction.LAUNCH
    assert restarted.seen.newest_run is not None
    assert restarted.seen.newest_run.state is RunState.LOST
    assert restarted.run is not None
    assert restarted.run.token > restarted.seen.newest_run.token


def test_a_launcher_of_another_process_is_refused_and_submits_nothing(
    ledger: Ledger, run: RunObservation, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    make_launcher().launch(ask(run))
    with pytest.raises(LaunchError, match="has a process already"):
        make_launcher().launch(ask(run))
    assert len(cluster.submissions) == 1


def test_a_submission_whose_answer_was_lost_is_no_failure(
    run: RunObservation, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    cluster.lost_answer = True
    process = make_launcher().launch(ask(run))
    assert make_launcher().observe(process) is ProcessState.ALIVE


@pytest.mark.parametrize("lists_refused", [False, True])
def test_a_submission_that_failed_is_one_sentence(
    lists_refused: bool, run: RunObservation, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    cluster.refusal, cluster.lists_refused = "the queue does not exist", lists_refused
    with pytest.raises(LaunchError, match="the queue does not exist"):
        make_launcher().launch(ask(run))


def test_a_submission_that_is_not_known_is_unknown_and_is_not_repeated(
    ledger: Ledger, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    cluster.lost_answer = cluster.is_silent = True
    for _ in range(2):
        left = supervise(supervisor_with(ledger, make_launcher()), WANTED)
        assert left.run is not None
        assert left.run.is_live
    assert left.seen.process is ProcessState.UNKNOWN
    assert len(cluster.submissions) == 1


def test_nothing_is_killed_while_the_cluster_is_silent(
    ledger: Ledger, run: RunObservation, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    process = make_launcher().launch(ask(run, IGNORES_ITS_LEASE))
    cluster.is_silent = True
    assert make_launcher().stop(process, grace_seconds=0) is ProcessState.UNKNOWN
    cluster.is_silent = False
    assert cluster.kills == []
    assert find_run(ledger, run.run_id).is_live


def test_only_a_driver_without_a_lease_is_killed(
    ledger: Ledger, run: RunObservation, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    process = make_launcher().launch(ask(run))
    assert make_launcher().stop(process, grace_seconds=30) is ProcessState.GONE
    assert cluster.kills == []  # it heard that its lease is lost, and ended
    hung = admit_run(ledger, stream=WANTED.name, mode="continuous", declaration_digest="d", launched_by="a test")
    process = make_launcher().launch(ask(hung, IGNORES_ITS_LEASE))
    assert make_launcher().stop(process, grace_seconds=0) is ProcessState.GONE
    assert len(cluster.kills) == 1
    assert find_run(ledger, hung.run_id).exit_code == -9


def test_the_cluster_reports_the_end_of_a_driver_that_did_not(
    ledger: Ledger, run: RunObservation, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    process = make_launcher().launch(ask(run))
    cluster.add(tag_of(process), ApplicationState.FAILED, explanation="killed by signal exitCode: 137", exit_code=137)
    left = observe(read_stream(ledger, WANTED.name), make_launcher()).left_exit
    assert left is not None
    assert (left.state, left.exit_code, left.reason) == (RunState.FAILED, 137, "killed by signal exitCode: 137")
    supervised = supervise(supervisor_with(ledger, make_launcher()), WANTED)
    assert supervised.decision.action is SupervisionAction.LAUNCH  # its first failure: it comes back at once
    ended = find_run(ledger, run.run_id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 137)


def test_an_application_killed_by_a_user_is_recorded_as_killed(
    run: RunObservation, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    process = make_launcher().launch(ask(run))
    cluster.add(tag_of(process), ApplicationState.KILLED, explanation="Application was killed by user root")
    ended = make_launcher().exit_of(process)
    assert ended is not None
    assert (ended.exit_code, ended.reason) == (-9, "killed by the cluster: Application was killed by user root")
    assert ended.failure is not None
    assert ended.failure.reason is FailureReason.DRIVER_KILLED


def test_nothing_is_submitted_for_a_run_that_has_ended(
    ledger: Ledger, run: RunObservation, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    record_end(ledger, run.run_id, state=RunState.LOST, exit_code=None, reason="never launched")
    with pytest.raises(LaunchError, match="has ended"):
        make_launcher().launch(ask(run))
    assert cluster.submissions == []


def test_secrets_travel_in_a_private_file_that_is_gone_afterwards(
    run: RunObservation,
    cluster: FakeCluster,
    make_launcher: MakeLauncher,
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nasty = 'planted "secret" $HOME `id` \\ : # = !\nand more'
    monkeypatch.setenv("SLUICE_CATALOG__CREDENTIAL", nasty)
    monkeypatch.setenv("SLUICE_STACK", "this machine's")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "planted-of-airflow")
    modes: list[int] = []

    def submit(submission: Submission) -> None:
        modes.append(stat.S_IMODE(submission.properties_file.stat().st_mode))
        cluster.submit(submission)

    make_launcher(submit).launch(ask(run, "--run-id=1", environment={"PYSPARK_PYTHON": "/usr/bin/python3"}))
    assert modes == [0o600]
    settings, submission = cluster.settings[0], cluster.submissions[0]
    assert not submission.properties_file.exists()
    taken = json.loads(settings.pop("fake.file.content"))
    assert taken["SLUICE_CATALOG__CREDENTIAL"] == nasty
    assert taken["SLUICE_LEDGER_URL"] == ledger_url
    assert settings["fake.file.mode"] == "600"
    assert not Path(settings["fake.file"]).exists()
    assert settings["fake.environment.SLUICE_RUN_ID"] == run.run_id
    assert settings["spark.driver.memory"] == "512m"
    assert "SLUICE_STACK" not in taken
    assert not any(nasty in value or ledger_url in value for value in settings.values()), "settings are no secret"
    assert {name for name in settings if "SLUICE" in name} == {
        "fake.environment.SLUICE_RUN_ID", "fake.environment.SLUICE_SETTINGS_FILE"
    }  # fmt: skip
    assert not any("planted-of-airflow" in value for value in settings.values())
    assert "planted" not in " ".join((submission.application, *submission.arguments, submission.name))


def test_an_application_for_work_items_is_submitted_like_a_driver(
    ledger: Ledger, cluster: FakeCluster, make_launcher: MakeLauncher, ledger_url: str
) -> None:
    request = work_request(ledger)

    process = make_launcher().launch(request)

    tag = tag_in(process)
    assert tag == WorkTag(run_id=request.run_id, launched_at_ms=round(process.started_at_seconds * 1000))
    settings, submission = cluster.settings[0], cluster.submissions[0]
    assert (submission.name, submission.arguments) == ("sluice work a_cluster-0", ("--pool=a_cluster-0",))
    assert json.loads(settings["fake.file.content"])["SLUICE_LEDGER_URL"] == ledger_url
    assert settings["fake.environment.SLUICE_RUN_ID"] == request.run_id
    assert settings["spark.driver.memory"] == "512m"
    assert [settings[f"fake.tag.{label}"] for label in tag.labels()] == list(tag.labels().values())
    assert find_application(ledger, request.run_id).host == "a_cluster"


def test_an_application_that_hangs_may_claim_nothing_more_before_it_is_killed(
    ledger: Ledger, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    request = work_request(ledger, IGNORES_ITS_LEASE)
    process = make_launcher().launch(request)
    assert beat(ledger, request.run_id)
    assert make_launcher().stop(process, grace_seconds=0) is ProcessState.GONE
    assert not beat(ledger, request.run_id)
    assert cluster.kills == ["application_1"]


def test_an_application_that_could_not_be_submitted_is_one_sentence_about_it(
    ledger: Ledger, cluster: FakeCluster, make_launcher: MakeLauncher
) -> None:
    cluster.refusal, cluster.lists_refused = "the queue does not exist", True
    request = work_request(ledger)
    with pytest.raises(LaunchError, match=f"of the work application {request.run_id}, was not accepted") as refused:
        make_launcher().launch(request)
    assert "the queue does not exist" in refused.value.message


def work_request(ledger: Ledger, *arguments: str) -> LaunchRequest:
    """The request for an application that an item waits for."""
    pool = Pool(name="a_cluster-0", digest="files-surroundings")
    payload = {"table": "silver.flights"}
    (item,) = work_items.ask(
        ledger,
        NewItem(kind=WorkKind.MAINTAIN_TABLE, subject="silver.flights", payload=payload, asked_by="a test", pool=pool),
    )
    application = begin_application(ledger, item, started_by="a test")
    assert application is not None
    return LaunchRequest(
        run_id=application,
        stream=pool.name,
        command=("jobs/run_work.py", f"--pool={pool.name}", *arguments),
        log_file=Path("/nowhere/work.log"),
        connection="a_cluster",
        conf={"spark.driver.memory": "512m"},
        is_application=True,
    )


def tag_of(process: ProcessIdentity) -> DriverTag:
    """The tag on the application of a driver."""
    tag = tag_in(process)
    assert isinstance(tag, DriverTag)
    return tag
