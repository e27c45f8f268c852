"""The queue on a real PostgreSQL: one claim for each item, fenced by the life of its application."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.fixtures.queued_items import POOL, claimed, let_pass, new_item, started

from sluice.errors import LedgerError
from sluice.ledger.applications import (
    MOST_APPLICATIONS,
    MOST_ATTEMPTS,
    beat,
    begin_application,
    bind_application,
    end_application,
    end_if_idle,
    find_application,
    recent_applications,
)
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.trigger_queries import observe_item as observe_from_trigger
from sluice.ledger.work_items import (
    ask,
    claim,
    end_item,
    find_items,
    observe_item,
    remove_old_work,
    withdraw_items,
    withdrawn_among,
)
from sluice.ledger.work_values import ApplicationState, NewItem, Pool, WorkItem, WorkKind, WorkState
from sluice.processes.host_processes import identity_of


def wanted(subject: str = "flights", *, pool: Pool = POOL, asked_by: str = "a run", priority: int = 0) -> NewItem:
    """What the task of an increment asks for."""
    return new_item(WorkKind.INCREMENT, subject, pool=pool, asked_by=asked_by, priority=priority)


def begun_beside(ledger: Ledger) -> str:
    """An application of another pool."""
    (item,) = ask(ledger, wanted("beside", pool=Pool(name="beside", digest=POOL.digest)))
    application = begin_application(ledger, item, started_by="a test")
    assert application is not None
    return application


def fall_silent(ledger: Ledger, application: str) -> None:
    """Let the last report of an application be long ago."""
    past = "now() - interval '10 min'"
    let_pass(ledger, f"UPDATE sluice.applications SET heartbeat_at = {past} WHERE application = '{application}'")  # noqa: S608


@pytest.fixture
def other_process(ledger_url: str) -> Iterator[Ledger]:
    """The ledger as another process has it open."""
    with open_ledger(ledger_url) as ledger:
        yield ledger


def test_of_many_that_wait_the_first_starts_one_application(ledger: Ledger) -> None:
    items = ask(ledger, wanted("a"), wanted("b"), wanted("c"))
    ask(ledger, wanted("other", pool=Pool(name="spark_default-0", digest="edited")))

    assert [observe_item(ledger, item).needs_application for item in items] == [True, False, False]
    assert begin_application(ledger, items[0], started_by="first") is not None
    assert begin_application(ledger, items[0], started_by="again") is None
    assert begin_application(ledger, items[1], started_by="second") is None
    assert [observe_item(ledger, item).needs_application for item in items] == [False, False, False]


def test_of_callers_at_the_same_moment_one_starts_an_application(ledger: Ledger, other_process: Ledger) -> None:
    (item,) = ask(ledger, wanted())
    with ThreadPoolExecutor(8) as pool:
        begun = list(
            pool.map(lambda n: begin_application((ledger, other_process)[n % 2], item, started_by="x"), range(16))
        )
    assert sum(one is not None for one in begun) == 1


def test_items_are_claimed_in_order_of_priority_and_age_and_once(ledger: Ledger, other_process: Ledger) -> None:
    low, high, later = ask(ledger, wanted("low"), wanted("high", priority=5), wanted("later"))
    application = started(ledger, high)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda one: claimed(one, application), (ledger, other_process) * 4))

    assert [item.item for answer in answers for item in answer] == [high, low, later]
    assert {item.attempt for answer in answers for item in answer} == {1}


def test_of_two_applications_one_claims_an_item_and_neither_waits_for_the_other(
    ledger: Ledger, other_process: Ledger
) -> None:
    items = ask(ledger, wanted("a"), wanted("b"))
    first = started(ledger, items[0])
    let_pass(ledger, "UPDATE sluice.applications SET started_at = now() - interval '1 h'")
    let_pass(ledger, "UPDATE sluice.work_items SET not_before = now() - interval '1 h'")
    second = started(ledger, items[0])
    beside: list[WorkItem] = []

    def choose(waiting: Sequence[WorkItem]) -> Sequence[WorkItem]:
        beside.extend(others.submit(claimed, other_process, second).result(timeout=30))
        return waiting

    with ThreadPoolExecutor(1) as others:
        taken = claim(ledger, first, choose)

    assert ([one.item for one in taken], beside) == (list(items), [])


def test_an_application_claims_what_its_chooser_takes_and_leaves_the_rest(ledger: Ledger) -> None:
    first, second = ask(ledger, wanted("a"), wanted("b"))
    application = started(ledger, first)

    taken = claim(ledger, application, lambda waiting: [one for one in waiting if one.subject == "b"])

    assert [one.item for one in taken] == [second]
    assert observe_item(ledger, first).state is WorkState.WAITING


def test_an_application_claims_nothing_of_another_deployment_or_pool(ledger: Ledger) -> None:
    edited, other = Pool(name=POOL.name, digest="edited"), Pool(name="large", digest=POOL.digest)
    (item, *_) = ask(ledger, wanted(), wanted("e", pool=edited), wanted("o", pool=other))
    assert [one.item for one in claimed(ledger, started(ledger, item))] == [item]


def test_work_of_another_deployment_changes_nothing_about_an_item_or_its_applications(ledger: Ledger) -> None:
    """Of a pool's name alone there may be work and applications of the files of yesterday."""
    edited = Pool(name=POOL.name, digest="edited")
    (old,) = ask(ledger, wanted("e", pool=edited))
    (item,) = ask(ledger, wanted())
    assert observe_item(ledger, item).needs_application, "the earlier item starts none for it"
    started(ledger, old)
    assert observe_item(ledger, item).needs_application, "the other one's application does not take it"
    application = started(ledger, item)
    (one,) = claimed(ledger, application)
    assert end_item(ledger, one, application, WorkState.DONE)
    assert observe_item(ledger, old).state is WorkState.WAITING
    assert end_if_idle(ledger, application, reason="no work"), "it could not take what waits"


def test_an_item_does_not_fail_by_applications_of_another_deployment(ledger: Ledger) -> None:
    old, item = ask(ledger, wanted("e", pool=Pool(name=POOL.name, digest="edited")), wanted())
    for _ in range(MOST_ATTEMPTS):
        application = begin_application(ledger, old, started_by="a test")
        assert application is not None
        end_application(ledger, application, reason="its files are gone")

    assert begin_application(ledger, item, started_by="a test") is not None
    assert observe_item(ledger, item).state is WorkState.WAITING


def test_what_nobody_waits_for_is_not_begun(ledger: Ledger) -> None:
    gone, here = ask(ledger, wanted("gone"), wanted("here"))
    application = started(ledger, here)
    let_pass(ledger, f"UPDATE sluice.work_items SET waits_until = now() - interval '1 s' WHERE item = '{gone}'")  # noqa: S608

    assert [one.item for one in claimed(ledger, application)] == [here]
    observe_item(ledger, gone)  # its task is back
    assert [one.item for one in claimed(ledger, application)] == [gone]


def test_what_the_same_run_asks_for_again_is_withdrawn_in_its_first_form(ledger: Ledger) -> None:
    (first,) = ask(ledger, wanted())
    (others,) = ask(ledger, wanted(asked_by="another run"))
    (second,) = ask(ledger, wanted())
    states = [observe_item(ledger, item).state for item in (first, others, second)]
    assert states == [WorkState.WITHDRAWN, WorkState.WAITING, WorkState.WAITING]


def test_an_end_is_recorded_once_with_its_result(ledger: Ledger) -> None:
    ids = ask(ledger, wanted("a"), wanted("b"))
    application = started(ledger, ids[0])
    done, failed = claimed(ledger, application)

    assert end_item(ledger, done, application, WorkState.DONE, result={"rows": 3})
    assert end_item(ledger, failed, application, WorkState.FAILED, failure="sluice: failed: OSError: no")
    assert not end_item(ledger, done, application, WorkState.FAILED, failure="late")

    seen = [observe_item(ledger, item) for item in ids]
    assert [(one.state, one.result, one.failure) for one in seen] == [
        (WorkState.DONE, {"rows": 3}, None),
        (WorkState.FAILED, None, "sluice: failed: OSError: no"),
    ]


@pytest.mark.parametrize("other", ["application = '{}'", "attempt = attempt + 1", "state = 'waiting'"])
def test_only_the_very_claim_of_an_item_can_end_it(ledger: Ledger, other: str) -> None:
    (item,) = ask(ledger, wanted())
    application = started(ledger, item)
    (mine,) = claimed(ledger, application)
    let_pass(ledger, f"UPDATE sluice.work_items SET {other.format(begun_beside(ledger))} WHERE item = '{item}'")  # noqa: S608

    assert not end_item(ledger, mine, application, WorkState.DONE)


@pytest.mark.parametrize("dies", ["silent", "ended"])
def test_what_a_dead_application_had_claimed_waits_again_and_runs_alone(ledger: Ledger, dies: str) -> None:
    (item,) = ask(ledger, wanted())
    first = started(ledger, item)
    (before,) = claimed(ledger, first)
    if dies == "silent":
        fall_silent(ledger, first)
    else:
        end_application(ledger, first, reason="killed by SIGKILL")
    seen = observe_item(ledger, item)
    assert (seen.state, seen.needs_application) == (WorkState.WAITING, True)
    assert claimed(ledger, first) == []

    second = started(ledger, item)
    (again,) = claimed(ledger, second)

    assert (before.attempt, before.runs_alone) == (1, False)
    assert (again.attempt, again.runs_alone) == (2, True)
    assert not beat(ledger, first)
    assert not end_item(ledger, before, first, WorkState.DONE)
    assert end_item(ledger, again, second, WorkState.DONE)


def test_an_item_in_which_applications_die_again_and_again_fails(ledger: Ledger) -> None:
    (item,) = ask(ledger, wanted())
    for _ in range(MOST_ATTEMPTS):
        application = started(ledger, item)
        assert len(claimed(ledger, application)) == 1
        end_application(ledger, application, reason="killed by SIGKILL")

    seen = observe_item(ledger, item)
    assert seen.state is WorkState.FAILED
    assert seen.failure == "it was claimed by 2 Spark applications, and each ended while it worked on it"
    assert not seen.needs_application


def test_an_item_fails_when_no_application_gets_as_far_as_to_report(ledger: Ledger) -> None:
    item, other = ask(ledger, wanted("a"), wanted("b"))
    for _ in range(MOST_ATTEMPTS):
        assert observe_item(ledger, item).needs_application
        application = begin_application(ledger, item, started_by="a test")
        assert application is not None
        end_application(ledger, application, reason="exit code 1")

    assert begin_application(ledger, item, started_by="a test") is None
    seen = observe_item(ledger, item)
    assert (seen.state, seen.needs_application) == (WorkState.FAILED, False)
    assert "2 Spark applications ended before they took any work: exit code 1" in (seen.failure or "")
    assert begin_application(ledger, other, started_by="a test") is None, "it has waited as long"
    (later,) = ask(ledger, wanted("a"))
    assert begin_application(ledger, later, started_by="a test") is not None, "who asks again tries again"


def test_an_item_waits_on_when_applications_that_have_worked_end(ledger: Ledger) -> None:
    (item,) = ask(ledger, wanted())
    for _ in range(MOST_ATTEMPTS + 1):
        end_application(ledger, started(ledger, item), reason="signalled")
    assert observe_item(ledger, item).state is WorkState.WAITING


def test_a_withdrawn_item_is_shown_to_its_application_and_stays_withdrawn(ledger: Ledger) -> None:
    ids = ask(ledger, wanted("a"), wanted("b"))
    application = started(ledger, ids[0])
    items = claimed(ledger, application)

    withdraw_items(ledger, ids[:1])

    assert withdrawn_among(ledger, ids) == {ids[0]}
    assert not end_item(ledger, items[0], application, WorkState.DONE)
    assert observe_item(ledger, ids[0]).state is WorkState.WITHDRAWN


def test_an_application_does_not_end_while_an_item_waits_for_it(ledger: Ledger) -> None:
    (item,) = ask(ledger, wanted())
    application = started(ledger, item)

    assert not end_if_idle(ledger, application, reason="no work")
    claimed(ledger, application)
    assert end_if_idle(ledger, application, reason="no work")

    ended = find_application(ledger, application)
    assert (ended.state, ended.reason) == (ApplicationState.ENDED, "no work")


def test_an_application_has_one_process(ledger: Ledger) -> None:
    (item,) = ask(ledger, wanted())
    application = started(ledger, item)
    identity = identity_of(1)

    bind_application(ledger, application, identity, log_file="/logs/a.log")
    with pytest.raises(LedgerError, match="has a process already"):
        bind_application(ledger, application, identity, log_file="/logs/b.log")

    assert (find_application(ledger, application).pid, observe_item(ledger, item).application) == (1, None)
    claimed(ledger, application)
    assert observe_item(ledger, item).log_file == "/logs/a.log"


def test_an_application_that_ended_before_its_process_began_has_none(ledger: Ledger) -> None:
    (item,) = ask(ledger, wanted())
    application = begin_application(ledger, item, started_by="a test")
    assert application is not None
    end_application(ledger, application, reason="it could not be started")
    with pytest.raises(LedgerError, match="has ended"):
        bind_application(ledger, application, identity_of(1), log_file=None)


def test_an_application_that_never_got_a_process_keeps_no_item_waiting(ledger: Ledger) -> None:
    (item,) = ask(ledger, wanted())
    assert begin_application(ledger, item, started_by="a task that was killed") is not None
    let_pass(ledger, "UPDATE sluice.applications SET started_at = now() - interval '61 s'")
    assert observe_item(ledger, item).needs_application
    assert begin_application(ledger, item, started_by="the next one") is not None


def test_beside_an_application_that_claims_nothing_another_is_started_and_no_third(ledger: Ledger) -> None:
    (item,) = ask(ledger, wanted())
    for number in range(MOST_APPLICATIONS):
        assert begin_application(ledger, item, started_by="a test") is not None, number
        let_pass(
            ledger,
            "UPDATE sluice.applications SET state = 'running', heartbeat_at = now(), "
            "started_at = now() - interval '1 h'",
        )
        let_pass(ledger, "UPDATE sluice.work_items SET not_before = now() - interval '1 h'")
    assert begin_application(ledger, item, started_by="a test") is None
    assert len(recent_applications(ledger, limit=9)) == MOST_APPLICATIONS


def test_triggers_share_a_look_that_says_that_their_tasks_wait(ledger: Ledger, ledger_url: str) -> None:
    ids = ask(ledger, wanted("a"), wanted("b"))
    let_pass(ledger, "UPDATE sluice.work_items SET waits_until = now() - interval '1 h'")

    async def look() -> Sequence[Any]:
        looks = [observe_from_trigger(ledger_url, item) for item in (*ids, "unknown")]
        return await asyncio.gather(*looks, return_exceptions=True)

    first, second, unknown = asyncio.run(look())

    assert (first.state, second.state) == (WorkState.WAITING, WorkState.WAITING)
    assert isinstance(unknown, LedgerError)
    assert len(claimed(ledger, started(ledger, ids[0]))) == 2


def test_old_work_is_removed_and_open_work_stays(ledger: Ledger) -> None:
    ids = ask(ledger, wanted("old"), wanted("new"), wanted("open"), wanted("left"))
    application = started(ledger, ids[0])
    for one in claimed(ledger, application)[:2]:
        end_item(ledger, one, application, WorkState.DONE)
    let_pass(ledger, f"UPDATE sluice.work_items SET ended_at = now() - interval '31 d' WHERE item = '{ids[0]}'")  # noqa: S608
    let_pass(ledger, f"UPDATE sluice.work_items SET waits_until = now() - interval '31 d' WHERE item = '{ids[3]}'")  # noqa: S608

    assert remove_old_work(ledger, dry_run=True) == 2
    assert remove_old_work(ledger) == 2
    assert {item.item for item, _ in find_items(ledger, limit=9)} == set(ids[1:3])
    with pytest.raises(LedgerError, match="knows no work item"):
        observe_item(ledger, ids[0])


def test_an_application_that_does_not_report_is_shown_as_ended_at_once(ledger: Ledger) -> None:
    (item,) = ask(ledger, wanted())
    application = started(ledger, item)
    assert find_application(ledger, application).state is ApplicationState.RUNNING

    let_pass(ledger, "UPDATE sluice.applications SET heartbeat_at = now() - interval '121 s'")

    for seen in (find_application(ledger, application), *recent_applications(ledger, limit=1)):
        assert (seen.state, seen.reason) == (ApplicationState.ENDED, "it did not report")
