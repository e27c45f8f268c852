"""Stand-ins for broken declarations, and the building of DAGs in which one broken stream never hides another.

Airflow's database stores all DAGs of a file at once, so one that it refuses would cost all. The limits are those of
Airflow's columns `dag.dag_id`, `dag.owners`, `dag_tag.name` and `dag.timetable_description`; PostgreSQL itself takes no
NUL in any text.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import DeclarationError
from sluice.messages import one_line, plain_text, unshowable_character

BROKEN_TAG = "broken"
PROBLEM_TASK = "problem"

_MOST_SENTENCES = 20
_LONGEST_SENTENCE = 1000
"""What is shown of the problems of one file; `sluice validate` shows all."""

_NOT_IN_DAG_IDS = re.compile(r"[^A-Za-z0-9_.-]")

_DOCUMENT = """\
# {file} is broken
This declaration cannot be used, so what it declares has no DAG. Everything declared in other files runs on; so does a
driver that was started before the file broke, but it is not started again until the file is corrected.

{problems}

Correct the file; this DAG then goes away by itself, and the declared one comes back. `sluice validate` checks the file
at once.
"""


def build_stream_dags(
    streams: Iterable[LoadedStream], build: Callable[[LoadedStream], DAG], *, suffix: str = ""
) -> dict[str, DAG]:
    """The DAGs of streams by their ids, in the order of the streams' names.

    Parameters
    ----------
    build: makes the DAG of one stream. When it raises, or makes a DAG that Airflow's database would refuse, a DAG
        tagged `broken` shows why.
    suffix: distinguishes the stand-ins of one DAG file from those of another: two files may not have DAGs of one id.
    """
    dags = (_built(loaded, build, suffix) for loaded in sorted(streams, key=lambda loaded: loaded.name))
    return {dag.dag_id: dag for dag in dags}


def broken_declaration_dags(broken: Mapping[Path, Sequence[DeclarationError]], *, folder: Path) -> list[DAG]:
    """A DAG for each broken file, in the order of the files.

    Parameters
    ----------
    broken: the problems of each file.
    folder: the folder of the declarations; the files are named from there.
    """
    files = sorted(broken)
    ids = Counter(_dag_id(file) for file in files)
    return [
        broken_declaration_dag(
            _dag_id(file, mark=_place_mark(file, folder) if ids[_dag_id(file)] > 1 else ""),
            file=str(_below(file, folder)),
            problems=broken[file],
        )
        for file in files
    ]


def broken_declaration_dag(dag_id: str, *, file: str, problems: Sequence[DeclarationError]) -> DAG:
    """The DAG of one broken file. Its page and its only task show file, line and message."""
    from airflow.sdk import task  # with all kinds of decorators: too slow for parsing files of which none is broken

    sentences = _sentences(problems)
    shown = "\n".join(f"- {sentence}" for sentence in sentences)
    with DAG(
        dag_id,
        description=sentences[0],
        doc_md=storable_page(_DOCUMENT.format(file=one_line(file), problems=shown)),
        schedule=None,
        catchup=False,
        max_active_runs=1,
        tags=[BROKEN_TAG],
        auto_register=False,
    ) as dag:

        @task(task_id=PROBLEM_TASK, retries=0)
        def problem() -> None:
            raise AirflowFailException(" ".join(sentences))

        problem()
    return dag


def _built(loaded: LoadedStream, build: Callable[[LoadedStream], DAG], suffix: str) -> DAG:
    try:
        dag = build(loaded)
        refusal = storing_problem(dag)
    except Exception as error:  # noqa: BLE001  # whatever Airflow refuses in one DAG would else remove all DAGs of the file
        refusal = str(error)
    else:
        if refusal is None:
            return dag
    problem = DeclarationError(f"Airflow refuses the DAG of this declaration: {refusal}.", location=loaded.location())
    return broken_declaration_dag(
        _dag_id(loaded.file, mark=suffix), file=str(_below(loaded.file, loaded.folder)), problems=[problem]
    )


def _sentences(problems: Sequence[DeclarationError]) -> list[str]:
    """The first problems, each in one line, and how many there are beside them."""
    sentences = [
        plain_text(one_line(str(problem)), longest=_LONGEST_SENTENCE) for problem in problems[:_MOST_SENTENCES]
    ]
    if (more := len(problems) - _MOST_SENTENCES) > 0:
        sentences.append(f"There are {more} more; `sluice validate` shows all.")
    return sentences


def _dag_id(file: Path, *, mark: str = "") -> str:
    """The id of the DAG of a broken file: of the file's name without its last suffix, and a mark where one is needed.

    The mark of a name that is too long for an id is made from the name, so that no two names become one.
    """
    stem = _NOT_IN_DAG_IDS.sub("_", file.stem)
    end = f"__{mark}" if mark else ""
    if len(stem) > LONGEST_DAG_ID - len("broken__") - len(end):
        end = f"__{_digest(file.name)}{end}"
        stem = stem[: LONGEST_DAG_ID - len("broken__") - len(end)]
    return f"broken__{stem}{end}"


def _place_mark(file: Path, folder: Path) -> str:
    """Distinguishes files of one name in several folders; it is the same on every machine."""
    return _digest(str(_below(file, folder)))


def _digest(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:8]


def _below(file: Path, folder: Path) -> Path:
    return file.relative_to(folder) if file != folder and file.is_relative_to(folder) else file


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
