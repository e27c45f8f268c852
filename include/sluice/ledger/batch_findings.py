"""What batches found in their rows: by output how many broke each rule, by input the fields that no column takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ARRAY, Connection, Identity, Index, Text, func, literal, select, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction, add_event, stored_text
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of, values_of

MAX_REJECTED = "max_rejected"
"""The rule of a quarantine by which a batch is held: more rows were rejected than the stream may reject."""

LIMITED_OUTPUT = "quarantine"
"""The output whose rule that is. A rule of another one may have the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCount:
    """What a rule found in a batch.

    counted: the rows that count; a null does not, for most expectations. failed: those of them that break the rule.
    on_failure: what was to be done about them then.
    is_broken: whether fewer rows have met it than must.
    observed: of a rule about the batch as a whole, what it has found there; of one about single rows that holds the
        batch, some of those that break it, as a JSON list of texts, each the columns that it looks at as JSON. Unset
        where it found nothing, and where a column is masked.
    condition: the digest of what had to be true of a row; unset of a rule about the batch as a whole, and where an
        earlier version has counted.
    rejected: of a rule that holds the batch, how many of `failed` another rule has sent to the quarantine at once;
        unset where there is none, and where an earlier version has counted.
    separated: how many rows a person has separated from the batch, at the first of the rules that held it; unset at the
        others.
    """

    counted: int
    failed: int
    on_failure: str
    is_broken: bool
    observed: str | None = None
    condition: str | None = field(default=None, compare=False)
    rejected: int | None = field(default=None, compare=False)
    separated: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """What the rules of an output found in a batch.

    table: the target, `<namespace>.<table>`; empty for an output that is no table. rows: all rows that were looked at,
    rejected ones too. rules: by the name of the rule.
    recorded_at: the database's clock; unset until the ledger has it.
    """

    stream: str
    generation: int
    batch: int
    output: str
    table: str
    rows: int
    rules: Mapping[str, RuleCount] = field(hash=False)
    recorded_at: datetime | None = None

    @property
    def held_by(self) -> Mapping[str, RuleCount]:
        """The broken rules that hold the batch, by name."""
        return {name: found for name, found in self.rules.items() if found.is_broken and found.on_failure == "hold"}

    @property
    def holds(self) -> bool:
        """Whether a rule that holds batches is broken."""
        return bool(self.held_by)

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the rules that the batch breaks."""
        return tuple(name for name, found in self.rules.items() if found.is_broken)


def separated_rows(results: Iterable[RuleResult]) -> int:
    """How many rows of a batch a person has separated. results: of its outputs."""
    return sum(found.separated or 0 for result in results for found in result.rules.values())


class StoredRuleResult(LedgerTable, record=RuleResult):
    """What the rules of an output found in a batch; one row for all of them, since a batch ends every few seconds."""

    __tablename__ = "rule_results"
    __table_args__ = (
        Index(None, "stream", "generation", "batch", "output", unique=True),
        Index(None, "table", "number"),
        Index(None, "stream", "number"),
    )

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)


_COLUMNS = StoredRuleResult.columns(without=("number",))


def add_rule_results(connection: Connection, results: Sequence[RuleResult]) -> None:
    """Record what the rules of a batch found, in the transaction that records it. What was recorded first stays."""
    for result in results:
        connection.execute(insert(StoredRuleResult).values(**values_of(result)).on_conflict_do_nothing())


def rule_results_of_tables(
    ledger: Ledger, written: Sequence[tuple[str, str]], *, limit: int
) -> Mapping[str, tuple[RuleResult, ...]]:
    """The newest results of some tables, newest first, at most `limit` of each stream: one that writes seldom is not
    crowded out by one that writes often.

    Parameters
    ----------
    written: tables, each with a stream that writes it.
    """
    if not written:
        return {}
    tables, streams = zip(*written, strict=True)
    asked = (
        func.unnest(literal(list(tables), ARRAY(Text)), literal(list(streams), ARRAY(Text)))
        .table_valued("table", "stream")
        .render_derived(name="asked")
    )
    newest = (
        select(StoredRuleResult.number, *_COLUMNS)
        .where(StoredRuleResult.stream == asked.c.stream, StoredRuleResult.table == asked.c.table)
        .order_by(StoredRuleResult.number.desc())
        .limit(limit)
        .lateral("newest")
    )
    query = select(*newest.c).select_from(asked.join(newest, true())).order_by(newest.c.number.desc())
    found: dict[str, list[RuleResult]] = {}
    with ledger.transaction() as connection:
        for row in connection.execute(query):
            found.setdefault(row.table, []).append(record_of(RuleResult, row))
    return {table: tuple(results) for table, results in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeclaredField:
    """A field that senders send and the declaration does not have.

    field: its name, with the path to it in an object; the number of a Protobuf field.
    times: how often it was sent, in all batches of the stream.
    first_batch, last_batch: the generation and number of the first and of the newest batch with it, `1:42`.
    """

    stream: str
    input: str
    field: str
    times: int
    first_seen_at: datetime
    first_batch: str
    last_seen_at: datetime
    last_batch: str


MOST_FIELDS = 200
"""Of one input: a sender whose keys are data, such as ids, sends new fields without end. The others are summed up."""

OTHERS = "(others)"
"""Stands for the fields beyond the limit, as a driver names those of a block of values."""

_NAMED_FIELDS = 10
"""How many the sentence of an event names; its evidence has all."""

_DRIVER = Actor.component("driver")


class SeenField(LedgerTable):
    """A field that was sent and that no column takes, with sums over all batches of the stream."""

    __tablename__ = "undeclared_fields"

    stream: Mapped[str] = mapped_column(primary_key=True)
    input: Mapped[str] = mapped_column(primary_key=True)
    field: Mapped[str] = mapped_column(primary_key=True)
    times: Mapped[int]
    first_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    first_batch: Mapped[str]
    last_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_batch: Mapped[str]


def add_undeclared_fields(
    connection: Connection, stream: str, counted: Mapping[str, Mapping[str, int]], *, batch: str
) -> None:
    """Add the counts of a batch to the sums, in the transaction that records it. The fields of an input that were never
    seen before have one event together.

    Parameters
    ----------
    counted: how often each field was sent, by input. batch: `<generation>:<number>`.
    """
    for name, counts in counted.items():
        _add(connection, stream, batch, name, {stored_text(sent): times for sent, times in counts.items()})


def _add(connection: Connection, stream: str, batch: str, name: str, counts: Mapping[str, int]) -> None:
    of_input = (SeenField.stream == stream, SeenField.input == name)
    known = set(connection.scalars(select(SeenField.field).where(*of_input)))
    new = [sent for sent in counts if sent not in known][: max(0, MOST_FIELDS - len(known))]
    sums: Counter[str] = Counter()
    for sent, times in counts.items():
        sums[sent if sent in known or sent in new else OTHERS] += times
    for sent, times in sorted(sums.items()):
        added = insert(SeenField).values(
            stream=stream, input=name, field=sent, times=times, first_batch=batch, last_batch=batch
        )
        change = {"times": SeenField.times + times, "last_batch": batch, "last_seen_at": func.now()}
        connection.execute(added.on_conflict_do_update(index_elements=["stream", "input", "field"], set_=change))
    if new:
        add_event(connection, _first_seen(stream, batch, name, sorted(new)))


def _first_seen(stream: str, batch: str, name: str, fields: Sequence[str]) -> Event:
    named = ", ".join(f"`{field}`" for field in fields[:_NAMED_FIELDS])
    more = f" and {len(fields) - _NAMED_FIELDS} more" if len(fields) > _NAMED_FIELDS else ""
    what = f"the field {named}, which is" if len(fields) == 1 else f"the fields {named}{more}, which are"
    return Event(
        name=stream,
        actor=_DRIVER,
        action=EventAction.SEE_FIELD,
        reason="undeclared_field",
        explanation=f"The input {name} has {what} not declared, since batch {stream}:{batch}.",
        evidence={"input": name, "fields": list(fields)},
        occasion=f"undeclared fields {name} {batch}",
    )


def undeclared_fields(ledger: Ledger, stream: str) -> tuple[UndeclaredField, ...]:
    """The undeclared fields of a stream's inputs, by input and name."""
    query = select(*SeenField.columns()).where(SeenField.stream == stream)
    with ledger.transaction() as connection:
        rows = connection.execute(query.order_by(SeenField.input, SeenField.field)).all()
    return tuple(record_of(UndeclaredField, row) for row in rows)
