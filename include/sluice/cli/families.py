"""The families of commands, and the import of a family when one of its commands is called.

`sluice --help` shows the list without an import of any family. Therefore a family's module imports at its top what its
commands need.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of commands, or a command without a family.

    Parameters
    ----------
    name: what a person types.
    module: the module in `sluice.cli`; its Typer application is called `app`.
    help: the line in `sluice --help`; the same as the first line of the family's own help.
    """

    name: str
    module: str
    help: str

    def load(self) -> TyperCommand | TyperGroup:
        """Import the family's module and build its command."""
        app: typer.Typer = import_module(f"sluice.cli.{self.module}").app
        command = typer.main.get_command(app)
        assert isinstance(command, TyperCommand | TyperGroup)  # noqa: S101  # Typer builds nothing else
        return command


FAMILIES = (
    Family(
        name="validate",
        module="validate",
        help="Check declarations, and report every problem with its file and line; in two seconds without an option.",
    ),
    Family(
        name="preview",
        module="preview",
        help="Apply a stream's transformation to a few rows of its inputs. Nothing is written, no checkpoint is made.",
    ),
    Family(
        name="demo",
        module="demo",
        help="Start the local stack, stream real flights through it, and verify every row with another engine.",
    ),
    Family(
        name="stack",
        module="stack_verbs",
        help="The local services: PostgreSQL, SeaweedFS, Kafka and Airflow.",
    ),
    Family(
        name="sql",
        module="sql",
        help="Ask the tables with SQL: DuckDB on the catalog, which only reads.",
    ),
    Family(name="stream", module="stream_verbs", help="Streams as declared and as they run."),
    Family(
        name="backfill",
        module="backfill",
        help="Compute an interval of a stream again and replace it, hour by hour, day by day or month by month.",
    ),
    Family(
        name="batch",
        module="batch_verbs",
        help="List, show, release and reject batches of a stream; settle those of former outputs.",
    ),
    Family(
        name="quarantine",
        module="quarantine_verbs",
        help="The rejected records of a stream: show, replay and discard them.",
    ),
    Family(name="table", module="table_verbs", help="Tables as declared and as they are."),
    Family(
        name="work",
        module="work_verbs",
        help="The queue of what Spark is asked to do, and the applications that do it.",
    ),
    Family(name="checkpoint", module="checkpoint_verbs", help="The checkpoints of streams."),
    Family(name="quality", module="quality_verbs", help="The results of table checks."),
    Family(
        name="ledger",
        module="ledger_verbs",
        help="The ledger database: its schema, its retention, and the Airflow it belongs to.",
    ),
)
"""In the order of `sluice --help`."""


class FamilyCommand(TyperCommand):
    """A family in the root's list of commands; it is loaded when its arguments are parsed."""

    def __init__(self, family: Family) -> None:
        super().__init__(family.name, help=family.help)
        self._family = family

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Load the family and let it parse its arguments: the context's command is the loaded one."""
        return self._family.load().make_context(*args, **kwargs)


class FamilyGroup(TyperGroup):
    """The root of the command: the families, and whatever is registered with the application itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {family.name: FamilyCommand(family) for family in FAMILIES} | dict(self.commands)
