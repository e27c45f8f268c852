"""Checks the columns that `maintenance.yaml` names against the tables that they are for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from sluice.declarations.declaration_files import KeyPath
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.loaded_declarations import LoadedTable
from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.declarations.maintenance_policy import LoadedPolicy
from sluice.errors import DeclarationError


def shared_column_problems(policy: LoadedPolicy, tables: Sequence[LoadedTable]) -> Iterator[DeclarationError]:
    """The columns that fit no table: what is said of them would silently never hold.

    Parameters
    ----------
    tables: all that are declared.
    """
    for path, declared in _places(policy):
        owns = [one.own for one in tables if path[0] == "all_tables" or one.name.startswith(f"{path[1]}.")]
        retention, compaction = declared.retention, declared.compaction
        if retention is not None and retention.column is not None:
            times = [one.times for one in owns]
            yield from _unfit(policy, (*path, "retention", "column"), [retention.column], times, "is partitioned by")
        if compaction is not None and compaction.z_order:
            columns = [one.z_orderable for one in owns]
            yield from _unfit(
                policy, (*path, "compaction", "z_order"), compaction.z_order, columns, "can be ordered by"
            )


def _places(policy: LoadedPolicy) -> Iterator[tuple[KeyPath, MaintenanceDeclaration]]:
    yield ("all_tables",), policy.declaration.all_tables
    yield from ((("namespaces", name), one) for name, one in policy.declaration.namespaces.items())


def _unfit(
    policy: LoadedPolicy, path: KeyPath, named: Sequence[str], fitting: Sequence[Collection[str]], what: str
) -> Iterator[DeclarationError]:
    """fitting: the columns of each table that it is for, of which one that has all the named ones is enough."""
    if not fitting or policy.document is None or any(set(named) <= set(one) for one in fitting):
        return
    known = sorted(set().union(*fitting))
    wrong = next((name for name in named if name not in known), named[0])
    yield DeclarationError(
        f"`{key_text(path)}`: no table that it is for {what} {', '.join(named)}.",
        location=policy.document.location(path),
        next_step=did_you_mean(wrong, known),
    )
