"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

StreamName = Annotated[str, typer.Argument(help="The stream's name.")]
TableName = Annotated[str, typer.Argument(help="The table, <namespace>.<table>.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
