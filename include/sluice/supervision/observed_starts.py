"""Observes what the next start of a stream without a checkpoint would read from its Iceberg inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import SluiceError
from sluice.settings import Settings
from sluice.sources.table_starts import StartAmount, Unreachable, amount_of
from sluice.tables.table_observation import RemovedRows, removed_from

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStart:
    """What an input would read. amount: none when it is unknown. refusal, problem: why it would not begin, or why that
    is unknown; empty otherwise. missing: the rows that the table has removed as too old; unset for none."""

    amount: StartAmount | None = None
    refusal: str = ""
    problem: str = ""
    missing: RemovedRows | None = None


def observe_starts(declaration: StreamDeclaration, settings: Settings, *, now: datetime) -> Mapping[str, ObservedStart]:
    """Observe the start of every Iceberg input, by the name of the input. Nothing is changed, no error is raised."""
    sources = {
        name: declared.declared_source.source
        for name, declared in declaration.inputs.items()
        if declared.is_stream and isinstance(declared.declared_source.source, IcebergSource)
    }
    if not sources:
        return {}
    from sluice.tables.catalog import open_catalog  # pyiceberg is slow to import

    try:
        catalog = open_catalog(settings)
        return {
            name: _observe(catalog, source, now)
            for name, source in sources.items()
            if isinstance(source, IcebergSource)
        }
    except SluiceError as error:
        return dict.fromkeys(sources, ObservedStart(problem=error.message.rstrip(".")))


def _observe(catalog: Catalog, source: IcebergSource, now: datetime) -> ObservedStart:
    from sluice.sources.iceberg_positions import history_of
    from sluice.sources.table_starts import plan_declared_start  # as above
    from sluice.tables.declared_tables import load_table

    table = load_table(catalog, source.table)
    found = plan_declared_start(table, source, now=now) if table is not None else None
    if table is None or found is None:
        return ObservedStart(amount=StartAmount(rows=0, data_bytes=0))
    if isinstance(found, Unreachable):
        return ObservedStart(refusal=found.reason)
    return ObservedStart(
        amount=amount_of(found, tuple(history_of(table)), is_whole=source.starting == "table"),
        missing=removed_from(table),
    )
