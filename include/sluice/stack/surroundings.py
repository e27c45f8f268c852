"""What a person brings to a stack: the folder of the declarations, and connections and variables of their own.

Purpose: a second `up` from another terminal, which lacks them or has others, must not take them from live streams.
How it works: the stack remembers them in its environment file. What a terminal does not name stays as it is. What it
names differently is a change; while Airflow or a stream runs, `up` refuses a change and names it. With
`--declarations-from-here` the terminal's surroundings replace all that is remembered, and what is dropped is named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sluice.errors import StackError
from sluice.project_file import find_project

LOCAL_CONNECTIONS = ("flights_kafka", "local_kafka", "landing")
"""The connections that the stack itself sets: the demo's name of its Kafka, the name for everybody else, its bucket."""

SPARK_CONNECTION = json.dumps(
    {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"}}
)
"""The connection `spark_default`: Spark inside the driver's own JVM, two threads."""

_SPARK_VARIABLE = "AIRFLOW_CONN_SPARK_DEFAULT"
"""The stack sets it, and a person may replace it: it decides where Spark runs."""

_PREFIXES = ("SLUICE_CONNECTIONS__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")
_OWN_PREFIXES = tuple(f"SLUICE_CONNECTIONS__{name.upper()}__" for name in LOCAL_CONNECTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The declarations and variables of one terminal, or those that a stack remembers.

    Parameters
    ----------
    pipelines: the folder of the declarations; None when none is named, which means the product's demo.
    variables: connections of streams and DAGs, and variables of DAGs; secrets may be among them, so they are not shown.
    """

    pipelines: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurroundingsDecision:
    """What a stack is to run with, and how that differs from before.

    Parameters
    ----------
    chosen: what it runs with.
    added: a sentence for each variable that is new.
    changed: a sentence for everything that is replaced or dropped.
    """

    chosen: Surroundings
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """All differences."""
        return (*self.changed, *self.added)


def surroundings_of(environ: Mapping[str, str], *, working_folder: Path) -> Surroundings:
    """The surroundings of a terminal: SLUICE_PIPELINES or the project of the working folder, and its variables.

    Raises
    ------
    SettingsError: when the project's file is wrong.
    StackError: when SLUICE_PIPELINES names a folder that does not exist.
    """
    named = environ.get("SLUICE_PIPELINES")
    if not named:
        project = find_project(working_folder)
        return Surroundings(pipelines=project.pipelines if project else None, variables=_variables_of(environ))
    folder = (working_folder / named).resolve()
    if not folder.is_dir():
        raise StackError(
            f"SLUICE_PIPELINES names {folder}, and there is no such folder.",
            next_step="Correct the variable, or unset it.",
        )
    return Surroundings(pipelines=folder, variables=_variables_of(environ))


def remembered_in(environment: Mapping[str, str]) -> Surroundings:
    """What the environment of a stack remembers of whom has started it.

    Parameters
    ----------
    environment: the stack's environment, as its file holds it.
    """
    pipelines, home = environment.get("SLUICE_PIPELINES", ""), environment.get("SLUICE_HOME", "")
    is_demo = not pipelines or Path(pipelines) == demo_pipelines(Path(home))
    return Surroundings(pipelines=None if is_demo else Path(pipelines), variables=_variables_of(environment))


def demo_pipelines(home: Path) -> Path:
    """The declarations of the product's demo, below the product's root."""
    return home / "include" / "pipelines"


def _variables_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what the stack sets itself, which a caller that loaded the environment of an earlier start holds too."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_PREFIXES) and not name.startswith(_OWN_PREFIXES)
        if (name, value) != (_SPARK_VARIABLE, SPARK_CONNECTION)
    }


def decide_surroundings(
    *, here: Surroundings, remembered: Surroundings | None, demo: Path, is_in_use: bool, replaces: bool
) -> SurroundingsDecision:
    """Decide what a stack runs with.

    Parameters
    ----------
    here: those of the terminal that calls `up`.
    remembered: those of the stack; None when it has none yet, or lost them.
    demo: the folder of the product's demo, which is used when none is named.
    is_in_use: whether Airflow or a stream of the stack runs.
    replaces: whether the terminal's replace those that are remembered.

    Raises
    ------
    StackError: when something in use would be replaced, or is unknown, and was not asked for.
    """
    if remembered is None:
        if is_in_use and not replaces:
            raise StackError(
                "The stack runs, and the file that says with which declarations and connections is gone.",
                next_step="Set those that it shall have, and run `sluice stack up --declarations-from-here`.",
            )
        return SurroundingsDecision(chosen=here)
    kept = Surroundings(
        pipelines=here.pipelines or remembered.pipelines, variables={**remembered.variables, **here.variables}
    )
    decision = _compared(remembered, here if replaces else kept, demo=demo)
    if decision.changed and is_in_use and not replaces:
        raise StackError(
            "The stack runs with other declarations or connections than this terminal names, and keeps them. With "
            f"those of this terminal: {' '.join(decision.changed)}",
            next_step="Name the same ones or none, or replace them with `sluice stack up --declarations-from-here`, "
            "which drops all that is not set here; `--dry-run` shows it.",
        )
    return decision


def _compared(before: Surroundings, after: Surroundings, *, demo: Path) -> SurroundingsDecision:
    old_folder, new_folder = before.pipelines or demo, after.pipelines or demo
    changed = []
    if old_folder != new_folder:
        changed.append(f"The declarations in {old_folder} are replaced by those in {new_folder}.")
    added = []
    for name in sorted({*before.variables, *after.variables}):
        old, new = before.variables.get(name), after.variables.get(name)
        if old == new:
            continue
        if new is None:
            changed.append(f"{name} is dropped.")
        elif old is None and name != _SPARK_VARIABLE:
            added.append(f"{name} is new.")
        else:
            changed.append(f"{name} gets another value.")
    return SurroundingsDecision(chosen=after, added=tuple(added), changed=tuple(changed))
