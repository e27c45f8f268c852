"""`sluice validate`: check declarations without Spark, catalog or ledger; with `--plan` by Spark's own analysis too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sluice.declarations.loading import Declarations
    from sluice.declarations.plan_report import PlanObservation
    from sluice.declarations.promises import WeakerPromise
    from sluice.errors import DeclarationError

INVALID_EXIT_CODE = 2


def validate(
    path: Annotated[
        Path | None, typer.Argument(help="A folder of declarations, or one file; the deployment's when not given.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Let Spark analyse the sound streams too, and show what it plans.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Check declarations: every problem with its file and line, in well under two seconds without `--plan`."""
    from sluice.cli.plans import print_plans
    from sluice.declarations.loading import load_declarations
    from sluice.launching.job_output import json_value

    folder = _folder_of(path)
    declarations = load_declarations(folder)
    connections = _connections()
    problems = _problems(declarations, connections)
    if path is not None and path.is_file():
        problems = [problem for problem in problems if problem.location.file.samefile(path)]
    plans = _plans(declarations, problems, path) if plan else ()
    if as_json:
        document = _as_json(declarations, problems, connections)
        if plan:
            document["plans"] = [json_value(one) for one in plans]
        typer.echo(json.dumps(document, indent=2))
    else:
        _print(declarations, problems, connections)
        print_plans(plans)
    cannot_run = any(one.problem is not None for one in plans)
    raise typer.Exit(INVALID_EXIT_CODE if problems or cannot_run else 0)


def _plans(
    declarations: Declarations, problems: list[DeclarationError], path: Path | None
) -> tuple[PlanObservation, ...]:
    """The plans of the sound streams; of one file only of the stream that it declares."""
    from sluice.cli.plans import plan_streams

    streams, _ = _sound(declarations, problems)
    if path is not None and path.is_file():
        streams = [name for name in streams if declarations.streams[name].file.samefile(path)]
    return plan_streams(declarations.folder, streams)


def _folder_of(path: Path | None) -> Path:
    """The folder to load: of one file the whole deployment's when it lies there, since it may name its neighbours."""
    from sluice.settings import pipelines_folder

    deployed = pipelines_folder()
    if path is not None and not path.is_file():
        return path
    if path is not None and not path.resolve().is_relative_to(deployed.resolve()):
        return path.parent
    here = Path.cwd()
    return deployed.relative_to(here) if deployed.is_relative_to(here) else deployed


def _connections() -> Mapping[str, str] | None:
    """The kind of each connection of the deployment; nothing when no deployment is configured, as in a build."""
    from sluice.errors import SettingsError
    from sluice.settings import load_settings

    try:
        settings = load_settings()
    except SettingsError:
        return None
    return {name: connection.kind for name, connection in settings.connections.items()}


def _problems(declarations: Declarations, connections: Mapping[str, str] | None) -> list[DeclarationError]:
    from sluice.declarations.connections import unknown_connections
    from sluice.declarations.expectations import unknown_types

    problems = [*declarations.problems, *unknown_types(declarations.tables.values())]
    if connections is not None:
        problems += unknown_connections(declarations.streams.values(), connections)
    return sorted(problems, key=lambda problem: (str(problem.location.file), problem.location.line or 0))


def _sound(declarations: Declarations, problems: list[DeclarationError]) -> tuple[list[str], list[str]]:
    broken = {problem.location.file for problem in problems}
    return (
        [stream.name for stream in declarations.streams.values() if stream.file not in broken],
        [table.name for table in declarations.tables.values() if table.file not in broken],
    )


def _notes(declarations: Declarations, streams: list[str]) -> list[WeakerPromise]:
    from sluice.declarations.promises import weaker_promises

    return list(weaker_promises(declarations.streams[name] for name in streams))


def _as_json(
    declarations: Declarations, problems: list[DeclarationError], connections: Mapping[str, str] | None
) -> dict[str, object]:
    streams, tables = _sound(declarations, problems)
    return {
        "valid": not problems,
        "streams": streams,
        "tables": tables,
        "connections_checked": connections is not None,
        "notes": [
            {"file": str(note.location.file), "line": note.location.line, "message": note.sentence}
            for note in _notes(declarations, streams)
        ],
        "problems": [
            {
                "error": type(problem).__name__,
                "file": str(problem.location.file),
                "line": problem.location.line,
                "message": problem.problem,
                "next_step": problem.next_step,
            }
            for problem in problems
        ],
    }


def _print(declarations: Declarations, problems: list[DeclarationError], connections: Mapping[str, str] | None) -> None:
    for problem in problems:
        typer.echo(str(problem))
    streams, tables = _sound(declarations, problems)
    for note in _notes(declarations, streams):
        typer.echo(f"note: {note}")
    typer.echo(f"{_count(streams, 'stream')} and {_count(tables, 'table')} are valid in {declarations.folder}.")
    if problems:
        files = {problem.location.file for problem in problems}
        typer.echo(f"{len(problems)} problem{'s' * (len(problems) != 1)} in {_count(list(files), 'file')}.")
    if connections is None:
        typer.echo("Connections were not checked: the environment describes no deployment.")


def _count(things: list[str] | list[Path], word: str) -> str:
    return f"{len(things)} {word}{'s' * (len(things) != 1)}"
