"""`sluice validate`: check declarations without Spark, catalog or ledger; with `--tables` against the tables as they
are, with `--plan` by Spark's own analysis too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from sluice.cli.terminal import AsJson, no_answer, print_json
from sluice.declarations.checks.combinations import WeakerPromise, weaker_promises
from sluice.declarations.checks.cross_checks import unknown_connections
from sluice.declarations.checks.rule_checks import unknown_expectations
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations, quarantine_declaration
from sluice.declarations.maintenance_policy import PolicyOrigin, PolicyValue
from sluice.declarations.spark_reports import PlanObservation, PlanProblem, PlansObservation
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import DeclarationError, LakehouseError, SettingsError, UsageError
from sluice.launching.job_output import json_value
from sluice.launching.spark_submit import ValidateStreams, run_in_foreground
from sluice.messages import Location
from sluice.settings import load_settings, pipelines_folder

app = typer.Typer(add_completion=False)

INVALID_EXIT_CODE = 2


@app.command()
def validate(
    path: Annotated[
        Path | None, typer.Argument(help="A folder of declarations, or one file; the deployment's when not given.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Let Spark analyse the valid streams too, and show its plans.")
    ] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="Compare the valid tables with the catalog: what would change, or cannot.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check declarations, and report every problem with its file and line; in two seconds without an option."""
    folder = _folder_of(path)
    declarations = load_declarations(folder)
    connections = _connections()
    problems = _problems(declarations, connections)
    if path is not None and path.is_file():
        problems = [problem for problem in problems if problem.location.file.samefile(path)]
    changes: Mapping[str, Sequence[str]] = {}
    if tables:
        changes, refusals = _table_changes(declarations, problems, path)
        problems = _in_order([*problems, *refusals])
    plans = _plans(declarations, problems, path) if plan else ()
    if as_json:
        document = _as_json(declarations, problems, connections)
        if plan:
            document["plans"] = [json_value(one) for one in plans]
        if tables:
            document["table_changes"] = changes
        print_json(document)
    else:
        for name, sentences in changes.items():
            typer.echo(f"{name}: `sluice table create` would {'; '.join(sentences)}")
        _print(declarations, problems, connections, plans)
    cannot_run = any(one.problem is not None for one in plans)
    raise typer.Exit(INVALID_EXIT_CODE if problems or cannot_run else 0)


def _table_changes(
    declarations: Declarations, problems: list[DeclarationError], path: Path | None
) -> tuple[Mapping[str, Sequence[str]], list[DeclarationError]]:
    """What the catalog's tables lack of the valid declarations, the quarantines of streams included, and which of them
    they cannot become; for one file, of the table that it declares, or of the quarantine of its stream.

    Raises
    ------
    SettingsError: when no deployment is configured. LakehouseError: when its catalog does not answer.
    """
    from sluice.layout.pruning import declared_filters  # slow to import, for every other check
    from sluice.tables.catalog import open_catalog
    from sluice.tables.change_plan import plan_table_changes
    from sluice.tables.declared_tables import load_table
    from sluice.tables.table_schemas import schema_of

    catalog, changes, refusals = open_catalog(load_settings()), {}, []
    for declared, file in _declared_tables(declarations, problems):
        if path is not None and path.is_file() and not file.samefile(path):
            continue
        name = declared.table
        table = load_table(catalog, name)
        try:
            planned = plan_table_changes(declared, None if table is None else table.metadata)
            declared_filters(declared, schema_of(declared))
        except (LakehouseError, UsageError) as error:
            place = Location(file=file)
            refusals.append(DeclarationError(error.message, location=place, next_step=error.next_step))
        else:
            changes.update({name: [str(change) for change in planned]} if planned else {})
    return changes, refusals


def _declared_tables(
    declarations: Declarations, problems: list[DeclarationError]
) -> Iterator[tuple[TableDeclaration, Path]]:
    """Each valid table with the file that declares it; of a quarantine, that of its stream."""
    streams, names = _valid(declarations, problems)
    for name in names:
        yield declarations.tables[name].declaration, declarations.tables[name].file
    for name in streams:
        stream = declarations.streams[name]
        if stream.declaration.quarantine:
            yield quarantine_declaration(stream.declaration, declarations.policy), stream.file


def _plans(
    declarations: Declarations, problems: list[DeclarationError], path: Path | None
) -> tuple[PlanObservation, ...]:
    """The plans of the valid streams; for one file, of the stream that it declares."""
    streams, _ = _valid(declarations, problems)
    if path is not None and path.is_file():
        streams = [name for name in streams if declarations.streams[name].file.samefile(path)]
    return _plan_streams(declarations.folder, streams)


def _folder_of(path: Path | None) -> Path:
    """The folder to load: a file of the deployment is loaded with all others, since it may refer to them."""
    deployed = pipelines_folder()
    if path is not None and not path.is_file():
        return path
    if path is not None and not path.resolve().is_relative_to(deployed.resolve()):
        return path.parent
    working_folder = Path.cwd()
    return deployed.relative_to(working_folder) if deployed.is_relative_to(working_folder) else deployed


def _connections() -> Mapping[str, str] | None:
    """The kind of each connection of the deployment; None when no deployment is configured, as in a build."""
    try:
        settings = load_settings()
    except SettingsError:
        return None
    return {name: connection.kind for name, connection in settings.connections.items()}


def _problems(declarations: Declarations, connections: Mapping[str, str] | None) -> list[DeclarationError]:
    problems = [*declarations.problems, *unknown_expectations(declarations.tables.values())]
    if connections is not None:
        problems += unknown_connections(declarations.streams.values(), connections)
    return _in_order(problems)


def _in_order(problems: Sequence[DeclarationError]) -> list[DeclarationError]:
    return sorted(problems, key=lambda problem: (str(problem.location.file), problem.location.line or 0))


def _valid(declarations: Declarations, problems: list[DeclarationError]) -> tuple[list[str], list[str]]:
    broken = {problem.location.file for problem in problems}
    return (
        [stream.name for stream in declarations.streams.values() if stream.file not in broken],
        [table.name for table in declarations.tables.values() if table.file not in broken],
    )


def _notes(declarations: Declarations, streams: list[str]) -> list[WeakerPromise]:
    return list(weaker_promises(declarations.streams[name] for name in streams))


def _inherited(declarations: Declarations, tables: list[str]) -> Mapping[str, Sequence[PolicyValue]]:
    """The maintenance that tables have from others; only the tables that have any."""
    shared = {PolicyOrigin.NAMESPACE, PolicyOrigin.ALL_TABLES}
    found = {name: [one for one in declarations.policy_of(name) if one.origin in shared] for name in tables}
    return {name: values for name, values in found.items() if values}


def _inherited_sentences(declarations: Declarations, tables: list[str]) -> list[str]:
    """A line for each value that tables inherit, with its place and how many tables have it."""
    values = Counter(str(one) for some in _inherited(declarations, tables).values() for one in some)
    return [f"maintenance {value}: {_count(range(count), 'table')}" for value, count in sorted(values.items())]


def _as_json(
    declarations: Declarations, problems: list[DeclarationError], connections: Mapping[str, str] | None
) -> dict[str, object]:
    streams, tables = _valid(declarations, problems)
    return {
        "valid": not problems,
        "streams": streams,
        "tables": tables,
        "connections_checked": connections is not None,
        "inherited_maintenance": {
            name: [one.as_json() for one in values] for name, values in _inherited(declarations, tables).items()
        },
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


def _print(
    declarations: Declarations,
    problems: list[DeclarationError],
    connections: Mapping[str, str] | None,
    plans: Sequence[PlanObservation],
) -> None:
    """Print what is right first. The problems and their number are the last lines."""
    streams, tables = _valid(declarations, problems)
    found = [(str(one.location.file), str(one)) for one in problems]
    found += [(one.stream, f"{one.stream} cannot run: {_words_of(one.problem)}") for one in plans if one.problem]
    for note in _notes(declarations, streams):
        typer.echo(f"note: {note}")
    for sentence in _inherited_sentences(declarations, tables):
        typer.echo(sentence)
    _print_plans(plans)
    if not found:
        typer.echo(f"{_count(streams, 'stream')} and {_count(tables, 'table')} are valid in {declarations.folder}.")
    if connections is None:
        typer.echo("Connections were not checked: the environment describes no deployment.")
    for _, sentence in found:
        typer.echo(sentence)
    if found:
        files = sorted({file for file, _ in found})
        typer.echo(f"{_count(found, 'problem')} in {_count(files, 'declaration')} of {declarations.folder}.")


def _words_of(problem: PlanProblem) -> str:
    place = f"{problem.file}:{problem.line}: " if problem.line else ""
    return f"{place}{problem.message} {problem.next_step}".rstrip()


def _count(things: Sequence[object], word: str) -> str:
    return f"{len(things)} {word}{'s' * (len(things) != 1)}"


def _plan_streams(folder: Path, streams: Sequence[str]) -> tuple[PlanObservation, ...]:
    """The plan of each stream, made by a Spark application of its own.

    Raises
    ------
    SettingsError: when no deployment is configured: Spark looks at the real topics and tables.
    LaunchError: when the application ended without an answer.
    """

    if not streams:
        return ()
    command = ValidateStreams(folder=str(folder.resolve()), streams=",".join(streams))
    ended = run_in_foreground(command, load_settings())
    answers = [line for line in ended.output.splitlines() if line.startswith('{"plans"')]
    if not answers:
        raise no_answer(ended, about=", ".join(streams))
    return TypeAdapter(PlansObservation).validate_json(answers[-1]).plans


def _print_plans(plans: Sequence[PlanObservation]) -> None:
    """Print a tree for each plan."""
    console = Console(highlight=False, markup=False, emoji=False)
    for plan in plans:
        console.print(_tree(plan))


def _tree(plan: PlanObservation) -> Tree:
    tree = Tree(Text.assemble((plan.stream, "bold"), f"  trigger {plan.trigger}, output mode {plan.output_mode}"))
    inputs = tree.add("inputs")
    for given in plan.inputs:
        watermark = f", watermark {given.watermark}" if given.watermark else ""
        inputs.add(f"{given.name}: {given.kind}, {'stream' if given.is_stream else 'static'}{watermark}")
    if plan.tables_to_create:
        tree.add(f"planned as declared, not created yet: {', '.join(plan.tables_to_create)} (`sluice table create`)")
    if plan.problem is not None:
        tree.add(Text.assemble(("cannot run", "red"), ": see below"))
        return tree
    parents: list[tuple[int, Tree]] = [(-1, tree.add("operators"))]
    for depth, step in plan.operators:
        while parents[-1][0] >= depth:
            parents.pop()
        parents.append((depth, parents[-1][1].add(step)))
    tree.add(f"state: {plan.state}: {', '.join(plan.stateful)}" if plan.state else "state: none")
    outputs = tree.add("outputs")
    for output in plan.outputs:
        columns = ", ".join(f"{name} {kind}" for name, kind in output.columns.items())
        outputs.add(f"{output.name}: {output.kind}, {output.place} ({columns})")
    return tree
