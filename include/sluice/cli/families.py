"""The families of commands, and the import of a command's module when it is called.

`sluice --help` shows the list without an import of any family. Therefore a module imports at its top what its commands
need. A family whose verbs need much of the platform, and different things, has several modules: only the verb's is
imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    help: the line in `sluice --help`; the same as the first line of the family's own help.
    module: the module in `sluice.cli`; its Typer application is called `app`.
    verbs: instead of one module, the function of each verb as `module:function`, in the order of the family's help.
    """

    name: str
    help: str
    module: str = ""
    verbs: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> TyperCommand | TyperGroup:
        """Build the family's command; its module is imported, and that of a verb when the verb is called."""
        if self.verbs:
            return VerbGroup(self)
        return _command_of(import_module(f"sluice.cli.{self.module}").app)

    def load_verb(self, verb: str) -> TyperCommand | TyperGroup:
        """Import the module of a verb and build its command."""
        module, _, function = self.verbs[verb].partition(":")
        app = typer.Typer(add_completion=False)
        app.command(verb)(getattr(import_module(f"sluice.cli.{module}"), function))
        return _command_of(app)


def _command_of(app: typer.Typer) -> TyperCommand | TyperGroup:
    command = typer.main.get_command(app)
    assert isinstance(command, TyperCommand | TyperGroup)  # noqa: S101  # Typer builds nothing else
    return command


class VerbGroup(TyperGroup):
    """The verbs of a family, each loaded when it is called or its help is shown.

    Source: https://click.palletsprojects.com/en/stable/complex/ (lazily loading subcommands)
    """

    def __init__(self, family: Family) -> None:
        super().__init__(name=family.name, help=family.help, no_args_is_help=True)
        self.commands = {verb: TyperCommand(verb) for verb in family.verbs}  # for "Did you mean" alone
        self._family = family

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order of the help."""
        return list(self._family.verbs)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """The command of a verb; none when there is no such verb."""
        return self._family.load_verb(cmd_name) if cmd_name in self._family.verbs else None


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
    Family(
        name="stream",
        help="Streams as declared and as they run.",
        verbs={
            "list": "show_streams:list_streams",
            "status": "show_streams:status",
            "show": "show_streams:show",
            "start": "stream_verbs:start",
            "stop": "stream_verbs:stop",
            "restart": "stream_verbs:restart",
            "reset": "stream_verbs:reset",
            "refresh": "refresh_verbs:refresh",
            "continue": "position_verbs:continue_past_gap",
            "repair": "position_verbs:repair",
            "rewind": "position_verbs:rewind",
            "leftovers": "leftover_verbs:leftovers",
            "clean": "leftover_verbs:clean",
            "logs": "show_streams:logs",
            "gaps": "backfill:gaps",
            "events": "event_verbs:stream_events",
            "reset-breaker": "stream_verbs:reset_breaker",
        },
    ),
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
    Family(
        name="table",
        help="Tables as declared and as they are.",
        verbs={
            "list": "table_verbs:list_tables",
            "show": "table_verbs:show",
            "create": "table_verbs:create",
            "adopt": "position_verbs:adopt",
            "plan": "maintenance_verbs:show_plan",
            "status": "maintenance_verbs:status",
            "history": "maintenance_verbs:history",
            "maintain": "maintenance_verbs:maintain",
            "layout": "maintenance_verbs:layout",
            "remove-orphans": "maintenance_verbs:remove_orphans",
            "restore-orphans": "maintenance_verbs:restore_orphans",
            "erase": "erasure_verbs:erase",
            "events": "event_verbs:table_events",
        },
    ),
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
