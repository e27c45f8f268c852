"""What every cluster's API keeps: the fake in memory, and the adapter against the shapes of the real answers.

`tests/yarn` asks a real ResourceManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from uuid import UUID

import pytest
from tests.fakes.cluster import FakeCluster
from tests.fakes.cluster_apis import YarnApi, served

from sluice.errors import ClusterError
from sluice.launching.launcher_port import ApplicationState, Cluster, DriverTag, WorkTag
from sluice.launching.yarn import YarnCluster, yarn_tags

TAG = DriverTag(
    stream="bronze_flights",
    token=7,
    run_id="8c1d7f0e-3b66-4d0a-9a54-0c3a1d0e5f42",
    launched_at_ms=1795290965953,
)
UNREACHABLE = "http://127.0.0.1:9"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCase:
    """A cluster, and how a test lets an application stand on it."""

    cluster: Cluster
    add: Callable[..., str]


@pytest.fixture(params=["fake", "yarn"])
def case(request: pytest.FixtureRequest) -> Iterator[ClusterCase]:
    """Each cluster in turn."""
    if request.param == "fake":
        fake = FakeCluster()
        yield ClusterCase(cluster=fake, add=fake.add)
    else:
        yarn = YarnApi()
        with served(yarn) as address:
            yield ClusterCase(cluster=YarnCluster(addresses=(address,), user="airflow"), add=yarn.add)


def test_what_was_never_submitted_is_not_found(case: ClusterCase) -> None:
    assert case.cluster.find(TAG) is None


@pytest.mark.parametrize(
    "state",
    [ApplicationState.QUEUED, ApplicationState.RUNNING, ApplicationState.SUCCEEDED, ApplicationState.FAILED],
)
def test_an_application_is_found_by_its_tag(case: ClusterCase, state: ApplicationState) -> None:
    name = case.add(TAG, state)
    found = case.cluster.find(TAG)
    assert found is not None
    assert (found.application_id, found.state) == (name, state)


@pytest.mark.parametrize(
    "other",
    [
        replace(TAG, token=8),
        replace(TAG, stream="silver_flights"),
        replace(TAG, run_id=str(UUID(int=1))),
        replace(TAG, launched_at_ms=TAG.launched_at_ms + 1),
    ],
    ids=["token", "stream", "run", "launch"],
)
def test_an_application_of_another_tag_is_another(case: ClusterCase, other: DriverTag) -> None:
    case.add(other, ApplicationState.RUNNING)
    assert case.cluster.find(TAG) is None


def test_an_application_for_work_items_is_found_by_its_own_tag(case: ClusterCase) -> None:
    work = WorkTag(run_id=TAG.run_id, launched_at_ms=TAG.launched_at_ms)
    name = case.add(work, ApplicationState.RUNNING)
    found = case.cluster.find(work)
    assert found is not None
    assert (found.application_id, found.state) == (name, ApplicationState.RUNNING)
    assert case.cluster.find(TAG) is None, "a run with the same id"
    assert case.cluster.find(replace(work, run_id=str(UUID(int=1)))) is None
    assert case.cluster.find(replace(work, launched_at_ms=1)) is None


def test_a_killed_application_lives_no_more_and_others_do(case: ClusterCase) -> None:
    other = replace(TAG, token=8, run_id=str(UUID(int=1)))
    name = case.add(TAG, ApplicationState.RUNNING)
    case.add(other, ApplicationState.RUNNING)
    case.cluster.kill(name)
    found, left = case.cluster.find(TAG), case.cluster.find(other)
    assert found is None or found.state is ApplicationState.KILLED  # a pod is deleted
    assert left is not None
    assert left.is_live


def test_killing_what_has_ended_or_is_forgotten_does_nothing(case: ClusterCase) -> None:
    name = case.add(TAG, ApplicationState.SUCCEEDED)
    case.cluster.kill(name)
    case.cluster.kill("application_1795290792835_9999")
    found = case.cluster.find(TAG)
    assert found is None or found.state is ApplicationState.SUCCEEDED


def test_a_cluster_that_does_not_answer_is_an_error_and_no_answer() -> None:
    absent = YarnCluster(addresses=(UNREACHABLE,), user="airflow")
    with pytest.raises(ClusterError, match="does not answer"):
        absent.find(TAG)
    with pytest.raises(ClusterError, match="does not answer"):
        absent.kill("application_1")


def test_of_two_resource_managers_the_active_one_is_asked() -> None:
    active = YarnApi()
    name = active.add(TAG, ApplicationState.RUNNING)
    with served(YarnApi(is_standby=True)) as standby, served(active) as address:
        cluster = YarnCluster(addresses=(standby, address), user="airflow")
        found = cluster.find(TAG)
        cluster.kill(name)
    assert found is not None
    assert found.application_id == name
    assert active.apps[0]["state"] == "KILLED"


def test_a_refused_kill_says_who_refused() -> None:
    api = YarnApi()
    name = api.add(TAG, ApplicationState.RUNNING)
    with served(api) as address, pytest.raises(ClusterError, match=r"answers 403: .*dr\.who not allowed") as refused:
        YarnCluster(addresses=(address,), user="").kill(name)
    assert refused.value.status == 403


@pytest.mark.parametrize(
    ("diagnostics", "exit_code"),
    [
        ("User application exited with status 1", None),
        ("Application failed 1 times due to AM Container exited with  exitCode: 137 Failing this attempt", 137),
        ("Exception from container-launch. Exit code: 13", 13),
    ],
)
def test_yarn_reports_the_exit_code_in_its_diagnostics(diagnostics: str, exit_code: int | None) -> None:
    api = YarnApi()
    api.add(TAG, ApplicationState.FAILED, explanation=diagnostics)
    with served(api) as address:
        found = YarnCluster(addresses=(address,), user="airflow").find(TAG)
    assert found is not None
    assert found.exit_code == exit_code
    assert found.explanation == " ".join(diagnostics.split())


def test_yarn_takes_the_tags_of_the_longest_names() -> None:
    longest = replace(TAG, stream="a" * 63, token=2**63 - 1)
    tags = yarn_tags(longest)
    assert all(len(tag) <= 100 and tag.isascii() and tag == tag.lower() for tag in tags)
    assert len(tags) <= 10
