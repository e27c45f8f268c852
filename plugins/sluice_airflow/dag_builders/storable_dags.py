"""What Airflow's database refuses in a DAG. It stores all DAGs of a file at once, so one of them would cost all.

The limits are those of Airflow's columns `dag.dag_id`, `dag.owners`, `dag_tag.name` and `dag.timetable_description`;
PostgreSQL itself takes no NUL in any text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from airflow.sdk import DAG

from sluice.messages.plain_text import plain_text, unshowable_character

LONGEST_DAG_ID = 250
LONGEST_OWNERS = 2000
LONGEST_TAG = 100
LONGEST_DOCUMENT = 100_000
"""The characters of a page. The database has no limit; a browser has."""

_LONGEST_SCHEDULE_IN_WORDS = 1000


def storing_problem(dag: DAG) -> str | None:
    """Why Airflow's database would refuse a DAG; none when it takes it."""
    if len(dag.dag_id) > LONGEST_DAG_ID:
        return f"its id has {len(dag.dag_id)} characters; at most {LONGEST_DAG_ID} are allowed"
    if len(dag.owner) > LONGEST_OWNERS:
        return f"its owners have {len(dag.owner)} characters together; at most {LONGEST_OWNERS} are allowed"
    if any(len(tag) > LONGEST_TAG for tag in dag.tags):
        return f"a tag has more than {LONGEST_TAG} characters"
    for what, text in _texts(dag):
        if (character := unshowable_character(text)) is not None:
            return f"{what} holds {character}, which the database does not store"
    expression = getattr(dag.timetable, "expression", None)
    return _schedule_problem(expression) if isinstance(expression, str) else None


def storable_owners(owners: Iterable[str], *, otherwise: str) -> list[str]:
    """The owners of the tasks of one DAG. When all names together are too long for the database, it is `otherwise`
    from the first name on that no longer fits.

    Parameters
    ----------
    owners: the owner of each task.
    otherwise: who owns the tasks whose owner does not fit; it always fits.
    """
    left = LONGEST_OWNERS - len(otherwise)
    result: list[str] = []
    known = {otherwise}
    for owner in owners:
        if owner not in known and len(owner) + len(", ") <= left:
            known.add(owner)
            left -= len(owner) + len(", ")
        result.append(owner if owner in known else otherwise)
    return result


def storable_page(text: str) -> str:
    """A page of a DAG or a task as the database takes it."""
    return plain_text(text, longest=LONGEST_DOCUMENT)


def _texts(dag: DAG) -> Iterator[tuple[str, str]]:
    """Every text of a DAG that a declaration can have a part in."""
    yield "its id", dag.dag_id
    yield "its description", dag.description or ""
    yield "its page", dag.doc_md or ""
    yield from (("a tag", tag) for tag in dag.tags)
    for task in dag.tasks:
        yield f"the owner of {task.task_id}", task.owner
        yield f"the page of {task.task_id}", task.doc_md or ""


@functools.lru_cache(maxsize=256)  # all continuous streams have one schedule, and increments have a few
def _schedule_problem(expression: str) -> str | None:
    """What Airflow would stumble over when it computes the next run, which it does while it stores the DAG."""
    from airflow.timetables.trigger import CronTriggerTimetable  # the scheduler's: it describes and computes

    timetable = CronTriggerTimetable(expression, timezone="UTC")
    if len(timetable.description) > _LONGEST_SCHEDULE_IN_WORDS:
        return "its schedule is too long in words"
    timetable.validate()
    return None
