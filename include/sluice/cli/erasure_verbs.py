"""`sluice table erase`: rows of a person, taken out of everything that is kept for a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.cli_context import CliContext, open_cli_context, person
from sluice.cli.terminal import AsJson, DryRun, TableName, Yes, may_act, print_done
from sluice.erasure.erase_table import Erased, ErasurePlan, TableErasure
from sluice.erasure.observe_erasure import ErasureObserver
from sluice.erasure.row_test import RowTest, condition_of, texts_of
from sluice.erasure.searched_files import FileSearch
from sluice.errors import SluiceError, UnhealthyError, UsageError
from sluice.ledger.events import Actor
from sluice.maintenance.maintained_tables import find_declaration
from sluice.operations import OperationVerb
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import load_table, require_table

Where = Annotated[
    str | None, typer.Option(help="Which rows, such as \"mail = 'ann@x.org'\". Your shell keeps it in its history.")
]
WhereFile = Annotated[Path | None, typer.Option(help="A file with the condition; `-` for stdin, with `--yes`.")]
Text = Annotated[
    list[str] | None,
    typer.Option(help="Erase rejected records that contain it; may be repeated. Your shell keeps it."),
]
TextFile = Annotated[Path | None, typer.Option(help="A file with such texts, one a line.")]
EveryRow = Annotated[bool, typer.Option("--every-row", help="Also where the condition is true for every row.")]


def erase(
    name: TableName,
    where: Where = None,
    where_file: WhereFile = None,
    text: Text = None,
    text_file: TextFile = None,
    every_row: EveryRow = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase rows from a table, its history and every file below its folders, and prove it by a search of all files.

    Give `--where-file` or `--where`. What a condition may say, in which order tables and streams come, and what is not
    searched: docs/guides/erasures.md.
    """
    condition = _condition(where, where_file)
    texts = [*(text or ()), *_lines(text_file)]
    if condition is None and not texts:
        raise UsageError("Nothing says which rows are to be erased.", next_step="Give `--where-file` or `--where`.")
    with _erasures(name, condition, texts, every_row=every_row) as erasures:
        shown: list[str] = []

        def planned() -> Sequence[ErasurePlan]:
            _show_wait(erasures, as_json=as_json)
            plans = [one.plan() for one in erasures]
            shown.extend(one.digest for one in plans)
            return plans

        if may_act(planned, dry_run=dry_run, yes=yes, as_json=as_json):
            _show_wait(erasures, as_json=as_json)
            with _interruption_said(as_json=as_json):
                done = _carry_out(erasures, shown)
            tables = [one.as_json() for one in done]
            print_done(OperationVerb.ERASE, {"tables": tables}, "\n".join(map(str, done)), as_json=as_json)


def _show_wait(erasures: Sequence[TableErasure], *, as_json: bool) -> None:
    """Say what is waited for: a program reads its errors from stderr, and nothing else."""
    if not as_json:
        names = " and ".join(one.name for one in erasures)
        typer.echo(f"Every file of {names} is read, which takes a while.", err=True)


@contextmanager
def _interruption_said(*, as_json: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if not as_json:
            typer.echo("sluice: Interrupted. What is done stays done; the same command does the rest.", err=True)
        raise


def _condition(where: str | None, where_file: Path | None) -> str | None:
    if where is not None and where_file is not None:
        raise UsageError("Both `--where` and `--where-file` are given.", next_step="Give one of them.")
    return where if where_file is None else _content(where_file).strip()


def _lines(file: Path | None) -> list[str]:
    """The lines of a file, of which each is one text."""
    if file is None:
        return []
    found = [line for line in _content(file).split("\n") if line.strip()]
    if not found:
        raise UsageError(f"{file} has no text.", next_step="Write one text a line.")
    return found


def _content(file: Path) -> str:
    """What a file says, without the mark that some editors put before it."""
    try:
        said = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file} cannot be read: {type(error).__name__}.", next_step="Name a file of text in UTF-8."
        ) from error
    return said.removeprefix("\ufeff")


@contextmanager
def _erasures(
    name: str, condition: str | None, texts: Sequence[str], *, every_row: bool
) -> Iterator[Sequence[TableErasure]]:
    with open_cli_context() as ctx:
        observer = ErasureObserver(
            settings=ctx.settings,
            ledger=ctx.ledger,
            declarations=ctx.declarations,
            catalog=open_catalog(ctx.settings),
        )
        find_declaration(ctx.declarations, name)
        schema = require_table(observer.catalog, name).schema()
        tests: list[tuple[str, RowTest]] = []
        if condition is not None:
            tests.append((name, condition_of(condition, schema, table=name)))
        quarantines = _quarantines(ctx, observer, name) if texts else []
        tests += [(one, texts_of(texts)) for one in quarantines]
        yield [
            TableErasure(
                observer=observer,
                name=one,
                search=FileSearch(test=test),
                actor=Actor.person(person()),
                every_row=every_row,
                searched_quarantines=quarantines,
            )
            for one, test in tests
        ]


def _quarantines(ctx: CliContext, observer: ErasureObserver, name: str) -> list[str]:
    """The quarantines of the streams that write a table, or the table itself when it is one."""
    streams = [one.declaration for _, one in sorted(ctx.declarations.streams.items()) if one.declaration.quarantine]
    found = [one.quarantine_table for one in streams if name in (one.quarantine_table, *one.tables_written)]
    if not found:
        raise UsageError(
            f"{name} has no quarantine in which texts could be looked for.", next_step="Leave `--text` out."
        )
    return [one for one in dict.fromkeys(found) if load_table(observer.catalog, one) is not None]


def _carry_out(erasures: Sequence[TableErasure], shown: Sequence[str]) -> list[Erased]:
    """Erase from each table, whatever is left to do in another one; from none, when one of them is refused."""
    if not shown and len(erasures) > 1:
        for plan in [one.plan() for one in erasures]:
            plan.require_unrefused()
    done, left = [], []
    for number, one in enumerate(erasures):
        try:
            done.append(one.erase(planned=shown[number] if shown else None))
        except UnhealthyError as error:
            left.append(error)
        except SluiceError:
            typer.echo("".join(f"{each}\n" for each in done), err=True, nl=False)
            raise
    if left:
        said = " ".join([*map(str, done), *(one.message for one in left)])
        raise UnhealthyError(said, next_step=" ".join(dict.fromkeys(one.next_step for one in left if one.next_step)))
    return done
