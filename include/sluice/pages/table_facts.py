"""What an analyst asks of a table: its columns, what must be true of it, and how to query it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from sluice.declarations.column_types import kind_of
from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.quality_checks import QualityObservation
from sluice.pages.page_words import ShownTone
from sluice.pages.table_looks import LookedColumn, TableLook
from sluice.quality.expectation_sentences import found_words, rule_words, without_masked_values
from sluice.settings import CatalogSettings

_TIMES = ("timestamptz", "timestamp", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRule:
    """A declared expectation, and what the newest check found. found: empty where it has not checked this one."""

    rule: str
    found: str
    tone: ShownTone


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQuery:
    """A query to copy. language: what runs it."""

    language: str
    text: str


def columns_shown(declared: TableDeclaration, look: TableLook) -> tuple[LookedColumn, ...]:
    """The columns as the table has them; those that are declared, while it is not there or not known."""
    if look.columns:
        docs = {column.name: column.doc for column in declared.columns}
        return tuple(replace(column, doc=column.doc or docs.get(column.path, "")) for column in look.columns)
    return tuple(
        LookedColumn(path=column.name, type=column.type, is_required=column.required, doc=column.doc)
        for column in declared.columns
    )


def rules_shown(
    declared: TableDeclaration, checks: Sequence[QualityObservation], masked: Collection[str]
) -> tuple[ShownRule, ...]:
    """The declared expectations in their order, those that are broken first."""
    details = checks[0].details if checks else ()
    newest = {(found.expectation, repr(found.arguments)): without_masked_values(found, masked) for found in details}
    expectations = () if declared.quality is None else declared.quality.expectations
    shown = []
    for one in expectations:
        found, rule = newest.get((one.type, repr(one.kwargs))), rule_words(one.type, one.kwargs)
        if found is None:
            shown.append(ShownRule(rule=rule, found="", tone=ShownTone.CALM))
        else:
            tone = ShownTone.ODD if found.success is None else ShownTone.GOOD if found.success else ShownTone.BAD
            shown.append(ShownRule(rule=rule, found=found_words(found), tone=tone))
    return tuple(sorted(shown, key=lambda one: one.tone not in (ShownTone.BAD, ShownTone.ODD)))


def queries_of(declared: TableDeclaration, catalog: CatalogSettings) -> tuple[ShownQuery, ...]:
    """Queries of the newest rows; no secret is in them."""
    spark = _sql(declared, of=f"{catalog.name}.{declared.table}", quote="`", now="current_timestamp()")
    duckdb = _sql(declared, of=declared.table, quote='"', now="now()")
    return (
        ShownQuery(language="Command line (DuckDB)", text=f"sluice sql '{duckdb}'"),
        ShownQuery(language="Spark SQL", text=spark),
        ShownQuery(language="Python (PyIceberg)", text="\n".join(_python(declared, catalog))),
    )


def _sql(declared: TableDeclaration, *, of: str, quote: str, now: str) -> str:
    by_name = {column.name: kind_of(column.column_type) for column in declared.columns}
    candidates = (*(part.column for part in declared.partitioning), *by_name)
    time = next((name for name in candidates if by_name.get(name) in _TIMES), None)
    lines = ["SELECT *", f"FROM {of}"]
    if time is not None:
        lines += [f"WHERE {quote}{time}{quote} >= {now} - INTERVAL 1 DAY", f"ORDER BY {quote}{time}{quote} DESC"]
    return "\n".join((*lines, "LIMIT 20"))


def _python(declared: TableDeclaration, catalog: CatalogSettings) -> Iterator[str]:
    yield "from pyiceberg.catalog import load_catalog"
    yield ""
    yield "catalog = load_catalog("
    yield f'    "{catalog.name}", type="rest", warehouse="{catalog.warehouse}",'
    yield f'    uri="{catalog.uri}", credential="…",'
    yield ")"
    yield f'table = catalog.load_table("{declared.table}")'
    yield "rows = table.scan(limit=20).to_pandas()"
