"""The root of the `sluice` command: its families, exit codes, error messages, and the environment of the local stack.

Exit codes: 0 done, 1 failed or unhealthy, 2 wrong usage, settings or declaration, 130 interrupted by Ctrl-C.
Only the standard library, Typer and `sluice.errors` are imported before the command's family is known, so that
`sluice --help` answers at once.

`sluice --help` shows the list without an import of any family. Therefore a module imports at its top what its commands
need. A family whose verbs need much of the platform, and different things, has several modules: only the verb's is
imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sluice.errors import SluiceError

if TYPE_CHECKING:
    from sluice.project_file import Project

INTERRUPTED_EXIT_CODE = 130
"""128 + SIGINT: what a shell reports for a command that Ctrl-C ended."""

_WITHOUT_ENVIRONMENT = ("stack", "demo")
"""Commands that write the local stack's environment; they must not read an older one."""

_QUIET = frozenset({"--json", "--help"})
"""With one of these words stderr holds nothing but an error."""


class FamilyGroup(TyperGroup):
    """The root of the command: the families, and whatever is registered with the application itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {family.name: FamilyCommand(family) for family in FAMILIES} | dict(self.commands)


app = typer.Typer(
    name="sluice",
    cls=FamilyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a pretty traceback prints local variables, and those may hold secrets
)


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
            "refresh": "position_verbs:refresh",
            "continue": "position_verbs:continue_past_gap",
            "repair": "position_verbs:repair",
            "rewind": "position_verbs:rewind",
            "leftovers": "checkpoint_verbs:leftovers",
            "clean": "checkpoint_verbs:clean",
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


@app.callback()
def sluice(context: typer.Context) -> None:
    """Run a lakehouse's streams and tables."""
    if context.invoked_subcommand in _WITHOUT_ENVIRONMENT:
        return
    is_named = bool(os.environ.get("SLUICE_PIPELINES"))
    project = None if is_named else enter_project()
    if "SLUICE_LEDGER_URL" not in os.environ or "SLUICE_DATA" in os.environ:
        enter_local_stack()
    if not is_named and not _QUIET & {*(context.obj or ())} and (note := declarations_note(project)):
        typer.echo(note, err=True)


def enter_project() -> Project | None:
    """Let the process use the declarations of the project that the working folder belongs to, when there is one."""
    from sluice.project_file import find_project  # `sluice --help` does without it

    project = find_project(Path.cwd())
    if project is not None:
        os.environ["SLUICE_PIPELINES"] = str(project.pipelines)
    return project


def declarations_note(project: Project | None) -> str:
    """Which declarations a command uses, and why these: empty where nothing else could be meant.

    Parameters
    ----------
    project: the project of the working folder.
    """
    from sluice.settings import pipelines_folder, project_root  # `sluice --help` does without it

    folder = pipelines_folder()
    if project is not None:
        return f"Declarations: {folder} (of {project.file})"
    if folder != project_root() / "include" / "pipelines":
        return f"Declarations: {folder} (of the local stack; there is no sluice.yaml here or above)"
    if Path.cwd().is_relative_to(project_root()):
        return ""
    return f"Declarations: {folder} (the demo's; there is no sluice.yaml here or above)"


def enter_local_stack() -> None:
    """Add the environment of this project's local stack to the process, when there is a stack.

    A variable `SLUICE_*` that is already set keeps its value. PATH, JAVA_HOME and all others get the stack's values,
    because drivers that a command starts must run as those that Airflow starts. A shell that has taken over
    `sluice stack env` has no mark of the stack: with it, `sluice stack down` finds the drivers that are started there.
    Where the variables are those of another deployment, nothing is added.
    """
    from sluice.stack.environment import load_environment  # `sluice --help` does without it
    from sluice.stack.folder import stack_folder

    folder = stack_folder()
    if not folder.environment.exists():
        return
    found = load_environment(folder.data)
    ledger = found.get("SLUICE_LEDGER_URL")
    if os.environ.get("SLUICE_LEDGER_URL", ledger) != ledger:
        return
    for name, value in found.items():
        if not (name.startswith("SLUICE_") and name in os.environ):
            os.environ[name] = value


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its exit code.

    Parameters
    ----------
    arguments: the command line without the program's name; by default the process's own.

    Raises
    ------
    SystemExit: always. An unexpected exception is a defect and keeps its traceback.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=words, prog_name="sluice", obj=words)
    except SluiceError as error:
        report_error(error, as_json="--json" in words)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)


def report_error(error: SluiceError, *, as_json: bool) -> None:
    """Write an error to stderr: a sentence and the next step, or one JSON object.

    Parameters
    ----------
    error: what went wrong.
    as_json: whether the command was called with `--json`.
    """
    if as_json:
        text = json.dumps({"error": type(error).__name__, "message": error.message, "next_step": error.next_step})
    else:
        text = f"sluice: {error.message}" + (f"\n{error.next_step}" if error.next_step else "")
    typer.echo(text, err=True)


def _command_of(app: typer.Typer) -> TyperCommand | TyperGroup:
    command = typer.main.get_command(app)
    assert isinstance(command, TyperCommand | TyperGroup)  # noqa: S101  # Typer builds nothing else
    return command


if __name__ == "__main__":
    main()
