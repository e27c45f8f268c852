"""The options that several commands share, and what they print alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sluice.errors import LaunchError

if TYPE_CHECKING:
    from sluice.launching.spark_submit import JobEnd

StreamName = Annotated[str, typer.Argument(help="The stream's name.")]
TableName = Annotated[str, typer.Argument(help="The table, <namespace>.<table>.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
AllowFewer = Annotated[bool, typer.Option("--allow-fewer", help="Publish also where fewer rows would come than go.")]

AllowRepeated = Annotated[
    bool, typer.Option("--allow-repeated", help="With --take-back: also where readers of the table get rows again.")
]

FEWER_ALLOWED = "Fewer rows are allowed."
"""The last step of a plan with `--allow-fewer`."""

UNHEALTHY_EXIT_CODE = 1
"""The command did its work, and what it looked at is not healthy or not as declared."""

_WIDTH_WITHOUT_TERMINAL = 200
"""A file or a pipe has no width; every row is to stay on one line there."""


def console() -> Console:
    """The console for tables: as wide as the terminal, or wide enough for a row when there is no terminal.

    It prints text as it stands: a name that a sender chose, such as `[/x]` or `:x:`, is neither markup nor an emoji.
    """
    terminal = Console(markup=False, emoji=False)
    if not terminal.is_terminal:
        terminal.width = _WIDTH_WITHOUT_TERMINAL
    return terminal


def print_json(document: object) -> None:
    """Print one JSON document, indented."""
    typer.echo(json.dumps(document, indent=2))


def print_dry_run_note() -> None:
    """Print the last line of every dry run in text."""
    typer.echo("Nothing was changed: this was a dry run.")


def no_answer(ended: JobEnd, *, about: str) -> LaunchError:
    """The error of a command whose Spark application gave no answer: in the application's own words, without its log.

    Parameters
    ----------
    ended: how the application ended.
    about: the streams that it was asked about.
    """
    why = ended.failure or f"the application ended with {ended.exit_code}, and named no reason"
    return LaunchError(f"Spark gave no answer about {about}: {why}", next_step=f"Its log is {ended.log}.")
