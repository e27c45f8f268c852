"""The root of the `sluice` command: its families of commands, its exit codes and how its errors read.

Exit codes: 0 done, 1 failed or unhealthy, 2 wrong usage, settings or declaration, 130 interrupted by Ctrl-C.
Only the standard library, Typer and `sluice.errors` are imported while a command starts; every family keeps this rule,
so that `sluice --help` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import typer

from sluice.cli.batch import batch_app
from sluice.cli.checkpoint import checkpoint_app
from sluice.cli.demo import demo
from sluice.cli.ledger import ledger_app
from sluice.cli.preview import preview
from sluice.cli.quality import quality_app
from sluice.cli.stack import stack_app
from sluice.cli.stream import stream_app
from sluice.cli.stream_orders import add_control_verbs
from sluice.cli.table import table_app
from sluice.cli.table_maintenance_commands import add_upkeep_verbs
from sluice.cli.validate import validate
from sluice.errors import SluiceError

INTERRUPTED_EXIT_CODE = 130
"""128 + SIGINT, what a shell reports for a command that Ctrl-C ended."""

_WITHOUT_ENVIRONMENT = ("stack", "demo")
"""Commands that make the local stack's environment; an older one of theirs must not get in their way."""

app = typer.Typer(
    name="sluice",
    help="Run a lakehouse's streams and tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a pretty traceback prints local variables, and those may hold secrets
)
app.add_typer(stack_app)
app.add_typer(stream_app)
add_control_verbs(stream_app)
app.add_typer(batch_app)
app.add_typer(table_app)
add_upkeep_verbs(table_app)
app.add_typer(checkpoint_app)
app.add_typer(quality_app)
app.add_typer(ledger_app)
app.command()(validate)
app.command()(preview)
app.command()(demo)


@app.callback()
def sluice(context: typer.Context) -> None:
    """Run a lakehouse's streams and tables."""
    if context.invoked_subcommand not in _WITHOUT_ENVIRONMENT and "SLUICE_LEDGER_URL" not in os.environ:
        enter_local_stack()


def enter_local_stack() -> None:
    """Take over the environment of this project's local stack, when there is one.

    What the person has set of `SLUICE_*` wins; PATH, JAVA_HOME and the rest are the stack's, since drivers that a
    command starts must run as those that Airflow starts.
    """
    from sluice.stack.environment import load_environment
    from sluice.stack.folder import stack_folder

    folder = stack_folder()
    if not folder.environment.exists():
        return
    for name, value in load_environment(folder.data).items():
        if not (name.startswith("SLUICE_") and name in os.environ):
            os.environ[name] = value


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit code.

    Parameters
    ----------
    arguments: the command line without the program's name; the process's own when not given.

    Raises
    ------
    SystemExit: always. An unexpected exception keeps its traceback: it is a defect, and the traceback is its evidence.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=words, prog_name="sluice")
    except SluiceError as error:
        report_error(error, as_json="--json" in words)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)


def report_error(error: SluiceError, *, as_json: bool) -> None:
    """Write an error to stderr: a sentence and the next step, or one JSON object for a program.

    Parameters
    ----------
    error: what went wrong.
    as_json: whether the command was asked for JSON.
    """
    if as_json:
        text = json.dumps({"error": type(error).__name__, "message": error.message, "next_step": error.next_step})
    else:
        text = f"sluice: {error.message}" + (f"\n{error.next_step}" if error.next_step else "")
    typer.echo(text, err=True)


if __name__ == "__main__":
    main()
