"""Checks declared expectations without importing Great Expectations, which takes seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from sluice.declarations.declaration_files import KeyPath
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.loaded_declarations import LoadedTable
from sluice.declarations.scalar_types import listed
from sluice.errors import DeclarationError

_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list", "column_set")
"""The arguments that name columns. Source: https://greatexpectations.io/expectations/"""


def unknown_columns(table: LoadedTable) -> Iterator[DeclarationError]:
    """Expectations about columns that their table does not have.

    `expect_column_to_exist` and the like are left out: for them a missing column is an answer and no mistake.
    """
    known = dict.fromkeys(column.name for column in table.declaration.columns)
    for path, column in _named_columns(table):
        if column not in known:
            yield DeclarationError(
                f"`{key_text(path)}`: {table.name} has no column {column}; it has {listed(known)}.",
                location=table.location(path),
                next_step=did_you_mean(column, known),
            )


def _named_columns(table: LoadedTable) -> Iterator[tuple[KeyPath, str]]:
    quality = table.declaration.quality
    for index, expectation in enumerate(quality.expectations if quality is not None else ()):
        if expectation.type.startswith(("expect_table_", "expect_column_to_exist")):
            continue
        for argument in _COLUMN_ARGUMENTS:
            path: KeyPath = ("quality", "expectations", index, "kwargs", argument)
            named = expectation.kwargs.get(argument)
            for column in named if isinstance(named, list) else [named] if named is not None else []:
                yield path, str(column)


def unknown_types(tables: Iterable[LoadedTable]) -> tuple[DeclarationError, ...]:
    """Expectations of a type that the installed Great Expectations does not have; none when it is not installed.

    Each type is a file of its package `expectations/core`, so the names of the files are the types.
    """
    known = installed_expectations()
    if not known:
        return ()
    return tuple(
        DeclarationError(
            f"`{key_text(path)}`: Great Expectations has no expectation {kind}.",
            location=table.location(path),
            next_step=did_you_mean(kind, known) or "See https://greatexpectations.io/expectations/.",
        )
        for table in tables
        for path, kind in _types(table).items()
        if kind not in known
    )


def installed_expectations() -> frozenset[str]:
    """The types of expectations that are installed; empty without Great Expectations."""
    package = find_spec("great_expectations")
    folders = package.submodule_search_locations if package is not None else None
    files = (file for folder in folders or () for file in Path(folder, "expectations", "core").glob("expect_*.py"))
    return frozenset(file.stem for file in files)


def _types(table: LoadedTable) -> Mapping[KeyPath, str]:
    quality = table.declaration.quality
    return {
        ("quality", "expectations", index, "type"): expectation.type
        for index, expectation in enumerate(quality.expectations if quality is not None else ())
    }
