"""The queue of work between many who ask: none is kept from it, and none is harmed twice by the same item."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from sqlalchemy import Connection, event, select
from tests.fixtures.queued_items import claimed, let_pass, new_item, started

from sluice.ledger.applications import begin_application, end_application, return_lost_items
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.work_items import (
    WAITED_FOR,
    ask,
    claim,
    end_item,
    find_items_named,
    look_at,
    observe_item,
    remove_old_work,
    show_item,
    withdraw_items,
)
from sluice.ledger.work_tables import WorkRow
from sluice.ledger.work_values import WorkItem, WorkKind, WorkState


def die_with(ledger: Ledger, item: str) -> None:
    """Let an application claim what waits, and be killed."""
    application = started(ledger, item)
    claimed(ledger, application)
    end_application(ledger, application, reason="killed by SIGKILL")


@pytest.fixture
def other_process(ledger_url: str) -> Iterator[Ledger]:
    """The ledger as another process has it open."""
    with open_ledger(ledger_url) as ledger:
        yield ledger


def test_a_long_backfill_hides_no_other_work_from_the_application(ledger: Ledger) -> None:
    first, *_ = ask(ledger, *(new_item(WorkKind.INTERVAL, "long", number=number, priority=5) for number in range(300)))
    ask(ledger, new_item(WorkKind.INTERVAL, "other", priority=5), new_item(WorkKind.MAINTAIN_TABLE, "silver.flights"))
    seen: list[WorkItem] = []

    def take_the_first(waiting: Sequence[WorkItem]) -> Sequence[WorkItem]:
        seen.extend(waiting)
        return waiting[:1]

    claim(ledger, started(ledger, first), take_the_first)

    assert {item.subject for item in seen} == {"long", "other", "silver.flights"}
    assert seen[0].item == first


def test_who_asks_again_for_what_killed_an_application_has_it_done_alone(ledger: Ledger) -> None:
    (poison,) = ask(ledger, new_item(WorkKind.MAINTAIN_TABLE, "poison"))
    for _ in range(2):
        die_with(ledger, poison)
    assert observe_item(ledger, poison).state is WorkState.FAILED

    poison_again = new_item(WorkKind.MAINTAIN_TABLE, "poison", asked_by="the next run")
    again, other = ask(ledger, poison_again, new_item(WorkKind.CHECK_TABLE, "t"))
    application = started(ledger, other)
    alone = {item.item: item.runs_alone for item in claimed(ledger, application)}
    assert alone == {again: True, other: False}


def test_an_item_that_was_done_alone_is_done_beside_others_again(ledger: Ledger) -> None:
    (neighbour,) = ask(ledger, new_item(WorkKind.MAINTAIN_TABLE, "neighbour"))
    die_with(ledger, neighbour)
    application = started(ledger, neighbour)
    (alone,) = claimed(ledger, application)
    assert alone.runs_alone
    assert end_item(ledger, alone, application, WorkState.DONE)

    ask(ledger, new_item(WorkKind.MAINTAIN_TABLE, "neighbour"))
    assert [item.runs_alone for item in claimed(ledger, application)] == [False]


def test_a_task_that_is_cleared_after_its_application_died_has_its_item_done_alone(ledger: Ledger) -> None:
    (first,) = ask(ledger, new_item(WorkKind.MAINTAIN_TABLE, "poison"))
    die_with(ledger, first)
    (second,) = ask(ledger, new_item(WorkKind.MAINTAIN_TABLE, "poison"))
    withdraw_items(ledger, [second])
    (third,) = ask(ledger, new_item(WorkKind.MAINTAIN_TABLE, "poison"))
    assert [item.runs_alone for item in claimed(ledger, started(ledger, third))] == [True]


def test_somebody_counts_as_waiting_for_a_minute_after_every_look(ledger: Ledger) -> None:
    (item,) = ask(ledger, new_item(WorkKind.CHECK_TABLE, "t"))
    let_pass(ledger, "UPDATE sluice.work_items SET waits_until = now() + interval '31 s'")

    observe_item(ledger, item)

    with ledger.transaction() as connection:
        until = connection.execute(select(WorkRow.waits_until)).scalar_one()
    assert until - database_time(ledger) > WAITED_FOR - timedelta(seconds=1)


def test_who_only_reads_an_item_does_not_wait_for_it(ledger: Ledger) -> None:
    left, here = ask(ledger, new_item(WorkKind.CHECK_TABLE, "left"), new_item(WorkKind.CHECK_TABLE, "here"))
    application = started(ledger, here)
    let_pass(ledger, f"UPDATE sluice.work_items SET waits_until = now() - interval '1 s' WHERE item = '{left}'")  # noqa: S608

    assert show_item(ledger, left).state is WorkState.WAITING

    assert [item.item for item in claimed(ledger, application)] == [here]


def test_an_item_is_found_by_its_first_characters_however_many_are_newer(ledger: Ledger) -> None:
    first, *_ = ask(ledger, *(new_item(WorkKind.CHECK_TABLE, f"t{number}") for number in range(3)))
    assert find_items_named(ledger, first[:8]) == (first,)
    assert find_items_named(ledger, "%") == find_items_named(ledger, "no such") == ()


def _lock(connection: Connection, item: str) -> None:
    """Lock an item in a transaction, as who looks at many has one of them locked before the next."""
    connection.execute(select(WorkRow.item).where(WorkRow.item == item).with_for_update())


def test_who_returns_lost_items_and_who_looks_at_them_never_wait_for_each_other(
    ledger: Ledger, other_process: Ledger
) -> None:
    """Each has one row that the other one wants, as two statements over many rows have them in either order."""
    one, other = ask(ledger, new_item(WorkKind.CHECK_TABLE, "one"), new_item(WorkKind.CHECK_TABLE, "other"))
    application = started(ledger, one)
    claimed(ledger, application)
    let_pass(ledger, "UPDATE sluice.work_items SET waits_until = now() - interval '1 s'")
    let_pass(ledger, "UPDATE sluice.applications SET state = 'ended', ended_at = now()")
    errors: list[BaseException] = []
    met = threading.Barrier(2)

    def look() -> None:
        try:
            with other_process.transaction() as connection:
                _lock(connection, other)
                met.wait(timeout=30)
                connection.execute(look_at([one, other]))
        except BaseException as error:  # noqa: BLE001  # the test shows it
            errors.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    with ledger.transaction() as connection:
        _lock(connection, one)
        met.wait(timeout=30)
        return_lost_items(connection)
    looking.join()

    assert errors == []


def test_however_much_old_work_there_is_no_statement_takes_long_to_remove_it(ledger: Ledger) -> None:
    (item,) = ask(ledger, new_item(WorkKind.CHECK_TABLE, "kept"))
    let_pass(
        ledger,
        "INSERT INTO sluice.work_items (item, kind, subject, payload, asked_by, pool, digest, priority, linger_seconds,"
        " waits_until, state, ended_at) SELECT 'old-' || number, kind, subject, payload, asked_by, pool, digest, 0, 0,"
        " waits_until, 'done', now() - interval '31 d' FROM sluice.work_items, generate_series(1, 4500) AS number",
    )
    removed: list[int] = []
    event.listen(ledger.engine, "after_cursor_execute", lambda *given: removed.append(given[1].rowcount))

    assert remove_old_work(ledger) == 4500

    assert max(removed) <= 2000
    assert find_items_named(ledger, "") == (item,)


@pytest.mark.parametrize(
    ("kind", "subject"), [(WorkKind.INCREMENT, "b"), (WorkKind.INTERVAL, "a"), (WorkKind.INTERVAL, "b")]
)
def test_a_lane_that_hangs_while_others_claim_gets_another_application(
    ledger: Ledger, kind: WorkKind, subject: str
) -> None:
    hanging, waiting, table = ask(
        ledger, new_item(kind, "a"), new_item(kind, subject, number=1), new_item(WorkKind.MAINTAIN_TABLE, "t")
    )
    application = started(ledger, hanging)
    claim(ledger, application, lambda items: [item for item in items if item.item == hanging])
    let_pass(
        ledger,
        "UPDATE sluice.work_items SET claimed_at = claimed_at - interval '11 min', "
        "not_before = not_before - interval '11 min'",
    )
    claim(ledger, application, lambda items: [item for item in items if item.item == table])

    assert observe_item(ledger, waiting).needs_application
    assert begin_application(ledger, waiting, started_by="a test") is not None


def test_a_lane_that_claims_gets_no_other_application(ledger: Ledger) -> None:
    first, second, waiting = ask(ledger, *(new_item(WorkKind.INCREMENT, name) for name in "abc"))
    application = started(ledger, first)
    claim(ledger, application, lambda items: [item for item in items if item.item == first])
    let_pass(
        ledger,
        "UPDATE sluice.work_items SET claimed_at = claimed_at - interval '11 min', "
        "not_before = not_before - interval '11 min'",
    )
    claim(ledger, application, lambda items: [item for item in items if item.item == second])

    assert not observe_item(ledger, waiting).needs_application
