"""When hosts with different files have replaced each other's runs often enough."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.fixtures.streams import continuous_stream
from tests.unit.supervision.supervision_cases import ALIVE, NOW, SECOND, a_run, seen

from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.supervision.decide_supervision import decide
from sluice.supervision.restart_policy import BECAUSE_CHANGED, REPLACED_WITHIN, is_back_and_forth, runs_that_count
from sluice.supervision.stream_verdict import StreamState, judge_stream
from sluice.supervision.supervision_values import StreamObservation, SupervisionAction, SupervisionReason

MINUTE = timedelta(minutes=1)


def runs(digests: str) -> tuple[RunObservation, ...]:
    """Runs of these declarations, as `A* A* B`: oldest first, those with a star were replaced, a minute apart each."""
    names = digests.split()
    found = []
    for ago, name in enumerate(reversed(names)):
        run = replace(a_run(digest=name[0], age=(ago + 1) * MINUTE), run_id=f"run-{len(names) - ago}")
        if name.endswith("*"):
            asked_at, state = NOW - ago * MINUTE, RunState.FINISHED
            run = replace(run, state=state, end_asked_at=asked_at, ended_at=asked_at, end_asked_because=BECAUSE_CHANGED)
        found.append(run)
    return tuple(found)


@pytest.mark.parametrize(
    ("digests", "of_a", "of_b"),
    [
        pytest.param("A* B", False, False, id="an edit"),
        pytest.param("A* A", False, False, id="an edit that was taken back, or a host that had the file late"),
        pytest.param("A* B* A", False, False, id="an edit, and a return"),
        pytest.param("A* B* B", True, False, id="the other host wins every start"),
        pytest.param("A* A* B", True, False, id="the first start was another host's"),
        pytest.param("A* B* A* B", True, False, id="the hosts take turns"),
        pytest.param("A* A* A", True, True, id="only the other host replaces"),
        pytest.param("A* B* B* B", True, True, id="only this one replaces"),
    ],
)
def test_what_the_hosts_make_of_it(digests: str, of_a: bool, of_b: bool) -> None:
    """of_a, of_b: whether hosts are found to differ where the file is A, and where it is B."""
    for digest, differs in (("A", of_a), ("B", of_b)):
        assert is_back_and_forth(runs(digests), digest=digest, reset_at=None, now=NOW) is differs, digest


@pytest.mark.parametrize(("digests", "differs"), [("A* B", False), ("A* B* A", False), ("A* B* B", True)])
def test_the_host_whose_file_runs_believes_the_one_that_was_refused(digests: str, differs: bool) -> None:
    live = runs(digests)[0].declaration_digest
    assert is_back_and_forth(runs(digests), digest=live, reset_at=None, now=NOW, is_known=True) is differs


def test_an_edit_is_followed_whatever_was_replaced_before() -> None:
    assert not is_back_and_forth(runs("A* B* A* B"), digest="C", reset_at=None, now=NOW)


@pytest.mark.parametrize("digests", ["A* B* A* B", "A* A* A"])
def test_replacements_of_earlier_hours_and_before_a_person_s_request_do_not_count(digests: str) -> None:
    assert is_back_and_forth(runs(digests), digest="A", reset_at=None, now=NOW)
    assert not is_back_and_forth(runs(digests), digest="A", reset_at=None, now=NOW + REPLACED_WITHIN)
    assert not is_back_and_forth(runs(digests), digest="A", reset_at=NOW - 2 * MINUTE, now=NOW)
    others = [replace(run, end_asked_because="it is stalled") for run in runs(digests)]
    assert not is_back_and_forth(others, digest="A", reset_at=None, now=NOW)


def observed(digests: str) -> StreamObservation:
    """A stream with these runs, whose newest one is heard."""
    return replace(seen(runs(digests)[0], process=ALIVE), runs=runs(digests))


def test_a_run_that_fits_is_unhealthy_when_others_replaced_it_for_nothing() -> None:
    """Nobody reported it: no run of the host that replaced was ever replaced, and the other one saw a run that fits."""
    here, there = continuous_stream(digest="A"), continuous_stream(digest="B")
    for wanted in (here, there):
        decided = decide(wanted, observed("A* A* A"))
        assert (decided.action, decided.reason) == (SupervisionAction.ADOPT, SupervisionReason.FILES_DIFFER)
        verdict = judge_stream(wanted, observed("A* A* A"))
        assert (verdict.state, verdict.is_healthy) == (StreamState.FILES_DIFFER, False)
        assert "Bring the same files to every host" in verdict.explanation
    newest, before, *_ = runs("A* A* A")
    assert runs_that_count(here, newest, before) >= len(runs("A* A* A"))


def test_both_hosts_judge_alike_once_one_of_them_has_recorded_it() -> None:
    known = StreamTrouble(
        stream="flights",
        reason=StreamState.FILES_DIFFER,
        explanation="",
        since=NOW - MINUTE,
        observed_at=NOW - MINUTE,
    )
    here, there, records = continuous_stream(digest="A"), continuous_stream(digest="B"), observed("A* B* B")
    assert [judge_stream(one, records).is_healthy for one in (here, there)] == [False, True]
    records = replace(records, trouble=known)
    assert {judge_stream(one, records).state for one in (here, there)} == {StreamState.FILES_DIFFER}
    late = replace(records, trouble=replace(known, reason=StreamState.LATE))
    assert decide(there, late).reason is SupervisionReason.HEARTBEAT_FRESH


def test_a_request_of_a_person_makes_the_next_one_another_occasion() -> None:
    records = observed("A* A* A")
    asked = replace(records, desired=replace(records.desired, requested_at=NOW - 10 * MINUTE))
    assert decide(continuous_stream(digest="B"), records).occasion == ""
    assert decide(continuous_stream(digest="B"), asked).occasion == (NOW - 10 * MINUTE).isoformat()


def test_a_run_that_starts_or_is_silent_is_judged_by_that() -> None:
    starting = replace(runs("A* A* A")[0], heartbeat_at=None, launched_at=NOW - SECOND)
    records = replace(observed("A* A* A"), runs=(starting, *runs("A* A* A")[1:]))
    assert decide(continuous_stream(digest="A"), records).reason is SupervisionReason.STARTING
