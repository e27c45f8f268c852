"""The root of the `sluice` command: exit codes, error messages, and the environment of the local stack.

Exit codes: 0 done, 1 failed or unhealthy, 2 wrong usage, settings or declaration, 130 interrupted by Ctrl-C.
Only the standard library, Typer and `sluice.errors` are imported before the command's family is known, so that
`sluice --help` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sluice.cli.families import FamilyGroup
from sluice.errors import SluiceError

if TYPE_CHECKING:
    from sluice.project_file import Project

INTERRUPTED_EXIT_CODE = 130
"""128 + SIGINT: what a shell reports for a command that Ctrl-C ended."""

_WITHOUT_ENVIRONMENT = ("stack", "demo")
"""Commands that write the local stack's environment; they must not read an older one."""

_QUIET = frozenset({"--json", "--help"})
"""With one of these words stderr holds nothing but an error."""

app = typer.Typer(
    name="sluice",
    cls=FamilyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a pretty traceback prints local variables, and those may hold secrets
)


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


if __name__ == "__main__":
    main()
