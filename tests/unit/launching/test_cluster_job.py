"""Bounded jobs on a cluster: one application for all tries that overlap, and a new one for the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sluice.launching.cluster.cluster_job import ClusterJobs, JobRequest
from tests.fakes.cluster import FakeCluster, fake_conf

from sluice.errors import ClusterError, LaunchError
from sluice.launching.cluster import cluster_job
from sluice.launching.cluster.application import ApplicationObservation, ApplicationState, ApplicationTag, JobTag

TAG = JobTag(job="maintain_table", subject="silver.flights", run_id="8c1d7f0e-3b66-4d0a-9a54-0c3a1d0e5f42")
URL = "postgresql+psycopg://sluice:planted-secret@ledger/sluice"


class EndingCluster(FakeCluster):
    """A cluster on which an application ends after some looks at it."""

    looks: int = 3
    ends_as: ApplicationState = ApplicationState.SUCCEEDED

    def find(self, tag: ApplicationTag) -> ApplicationObservation | None:
        """The application with this tag, which may end now."""
        found = super().find(tag)
        if found is not None and found.is_live:
            self.looks -= 1
            if self.looks <= 0:
                self.add(tag, self.ends_as)
        return super().find(tag)


def jobs_on(cluster: FakeCluster) -> ClusterJobs:
    """Jobs on a cluster, without a pause between two looks."""
    return ClusterJobs(
        connection="the_cluster",
        ledger_url=URL,
        cluster=cluster,
        conf_for=fake_conf,
        submit=cluster.submit,
        look_seconds=0.0,
    )


def request(tmp_path: Path) -> JobRequest:
    """The request of a job."""
    return JobRequest(
        tag=TAG,
        application="jobs/maintain_table.py",
        arguments=("--table=silver.flights",),
        conf={"spark.driver.memory": "1g"},
        environment={"PYSPARK_PYTHON": "python"},
        log_file=tmp_path / "log",
    )


def test_a_job_is_submitted_and_awaited(tmp_path: Path) -> None:
    cluster = EndingCluster()
    ended = jobs_on(cluster).run(request(tmp_path))
    assert (ended.application_id, ended.state) == ("application_1", ApplicationState.SUCCEEDED)
    (submission,), (settings,) = cluster.submissions, cluster.settings
    assert (submission.name, submission.arguments) == (
        "sluice maintain_table silver.flights",
        ("--table=silver.flights",),
    )
    assert settings["fake.environment.SLUICE_JOB_RUN"] == f"maintain_table silver.flights {TAG.run_id}"
    assert settings["fake.environment.SLUICE_LEDGER_URL"] == URL
    assert settings["spark.driver.memory"] == "1g"
    assert "planted-secret" not in f"{submission}{jobs_on(FakeCluster())}"


def test_a_try_after_a_workers_death_waits_for_what_still_runs(tmp_path: Path) -> None:
    cluster = EndingCluster()
    cluster.add(TAG, ApplicationState.RUNNING)
    assert jobs_on(cluster).run(request(tmp_path)).application_id == "application_1"
    assert cluster.submissions == []


def test_a_try_after_a_failed_one_submits_again(tmp_path: Path) -> None:
    cluster = EndingCluster()
    cluster.add(TAG, ApplicationState.FAILED)
    ended = jobs_on(cluster).run(request(tmp_path))
    assert (ended.application_id, ended.state) == ("application_2", ApplicationState.SUCCEEDED)


def test_a_submission_whose_answer_was_lost_is_found(tmp_path: Path) -> None:
    cluster = EndingCluster(lost_answer=True)
    assert jobs_on(cluster).run(request(tmp_path)).state is ApplicationState.SUCCEEDED
    assert len(cluster.submissions) == 1


def test_a_refused_submission_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="the queue is unknown"):
        jobs_on(EndingCluster(refusal="the queue is unknown")).run(request(tmp_path))


def test_nothing_is_submitted_while_the_cluster_is_silent(tmp_path: Path) -> None:
    cluster = EndingCluster(is_silent=True)
    with pytest.raises(ClusterError):
        jobs_on(cluster).run(request(tmp_path))
    assert cluster.submissions == []


def test_a_job_that_the_cluster_forgot_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_job, "SUBMITTED_WITHIN_SECONDS", 0.05)

    def forgets(_submission: Any) -> None:
        """Accepts, and lists nothing."""

    jobs = replace(jobs_on(EndingCluster()), submit=forgets)
    with pytest.raises(LaunchError, match="has known no application of maintain_table "):
        jobs.run(request(tmp_path))


def test_only_what_runs_is_killed() -> None:
    cluster = FakeCluster()
    jobs_on(cluster).kill(TAG)
    cluster.add(TAG, ApplicationState.SUCCEEDED)
    jobs_on(cluster).kill(TAG)
    assert cluster.kills == []
    cluster.add(TAG, ApplicationState.RUNNING)
    jobs_on(cluster).kill(TAG)
    assert cluster.kills == ["application_1"]
