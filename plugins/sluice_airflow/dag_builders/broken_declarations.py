"""Stand-ins for broken declarations, and the building of DAGs in which one broken stream never hides another."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.load_declarations import LoadedStream
from sluice.errors import DeclarationError

BROKEN_TAG = "broken"
PROBLEM_TASK = "problem"

_NOT_IN_DAG_IDS = re.compile(r"[^A-Za-z0-9_.-]")

_DOCUMENT = """\
# {file} is broken
This declaration cannot be used, so what it declares has no DAG. Everything declared in other files runs on; so does a
driver that was started before the file broke, but it is not started again until the file is corrected.

{problems}

Correct the file; this DAG then goes away by itself, and the declared one comes back. `sluice validate` checks the file
at once.
"""


def build_stream_dags(streams: Iterable[LoadedStream], build: Callable[[LoadedStream], DAG]) -> dict[str, DAG]:
    """The DAGs of streams by their ids, in the order of the streams' names.

    Parameters
    ----------
    build: makes the DAG of one stream. When it raises, a DAG tagged `broken` shows why.
    """
    dags = (_built(loaded, build) for loaded in sorted(streams, key=lambda loaded: loaded.name))
    return {dag.dag_id: dag for dag in dags}


def broken_declaration_dags(broken: Mapping[Path, Sequence[DeclarationError]], *, folder: Path) -> list[DAG]:
    """A DAG for each broken file, in the order of the files.

    Parameters
    ----------
    broken: the problems of each file.
    folder: the folder of the declarations; the files are named from there.
    """
    files = sorted(broken)
    stems = Counter(_stem(file) for file in files)
    return [
        broken_declaration_dag(
            f"broken__{_stem(file)}" + (f"__{_place_mark(file, folder)}" if stems[_stem(file)] > 1 else ""),
            file=str(_below(file, folder)),
            problems=broken[file],
        )
        for file in files
    ]


def broken_declaration_dag(dag_id: str, *, file: str, problems: Sequence[DeclarationError]) -> DAG:
    """The DAG of one broken file. Its page and its only task show file, line and message."""
    sentences = [_sentence(problem) for problem in problems]
    with DAG(
        dag_id,
        description=sentences[0],
        doc_md=_DOCUMENT.format(file=file, problems="\n".join(f"- {sentence}" for sentence in sentences)),
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


def _built(loaded: LoadedStream, build: Callable[[LoadedStream], DAG]) -> DAG:
    try:
        return build(loaded)
    except Exception as error:  # noqa: BLE001  # whatever Airflow refuses in one DAG would else remove all DAGs of the file
        problem = DeclarationError(f"Airflow refuses the DAG of this declaration: {error}", location=loaded.location())
        return broken_declaration_dags({loaded.file: [problem]}, folder=loaded.folder)[0]


def _sentence(problem: DeclarationError) -> str:
    return str(problem).replace("\n", " ")


def _stem(file: Path) -> str:
    """The file's name without its last suffix, in the letters that a DAG's id may have."""
    return _NOT_IN_DAG_IDS.sub("_", file.stem)


def _place_mark(file: Path, folder: Path) -> str:
    """Distinguishes files of one name in several folders; it is the same on every machine."""
    return hashlib.sha256(str(_below(file, folder)).encode()).hexdigest()[:8]


def _below(file: Path, folder: Path) -> Path:
    return file.relative_to(folder) if file != folder and file.is_relative_to(folder) else file
