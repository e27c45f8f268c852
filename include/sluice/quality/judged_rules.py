"""The rules by which the batches of tables are judged, and what the newest batches found. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.ledger.batch_findings import RuleCount, RuleResult


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRule:
    """A rule by which batches of a table are judged.

    owner: who answers for it. stream: the one that declares it, of whose batches it is; unset: the table declares it,
    for the batches of all streams that write it.
    """

    declared: RuleDeclaration
    owner: str
    stream: str | None = None

    def found_in(self, batch: RuleResult) -> RuleCount | None:
        """What it found in a batch; none where the batch was not judged by it."""
        return batch.rules.get(self.declared.name) if self.stream in (None, batch.stream) else None

    def newest_in(self, batches: Iterable[RuleResult]) -> RuleCount | None:
        """What it found last. batches: newest first."""
        return next((found for batch in batches if (found := self.found_in(batch)) is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """The rules of the batches of one table, its own first, and the streams whose batches are judged by them."""

    rules: tuple[JudgedRule, ...] = ()
    streams: tuple[str, ...] = ()


def judged_rules(declarations: Declarations) -> Mapping[str, TableRules]:
    """The rules of the batches of all tables that have any, by table."""
    found = {
        name: TableRules(
            rules=tuple(JudgedRule(declared=rule, owner=rule.owner or table.owner) for rule in table.rules)
        )
        for name, loaded in declarations.tables.items()
        if (table := loaded.declaration).rules
    }
    for stream in declarations.streams.values():
        for table_name, rules in _of_stream(stream):
            known = found.get(table_name, TableRules())
            of_table = {one.declared.name for one in known.rules if one.stream is None}
            own = [
                JudgedRule(declared=rule, owner=rule.owner or stream.declaration.owner, stream=stream.name)
                for rule in rules
                if rule.name not in of_table
            ]
            found[table_name] = replace(
                known, rules=(*known.rules, *own), streams=tuple(dict.fromkeys((*known.streams, stream.name)))
            )
    return found


def _of_stream(stream: LoadedStream) -> Iterator[tuple[str, Sequence[RuleDeclaration]]]:
    """The tables of a stream whose batches are judged, each with all rules of its output."""
    for name, rules in stream.rules.items():
        output = stream.declaration.outputs[name].iceberg
        if output is not None:
            yield output.table, rules


def writers_of(rules: Mapping[str, TableRules], tables: Iterable[str]) -> list[tuple[str, str]]:
    """These tables with each of the streams whose batches are judged there."""
    return [(table, stream) for table in tables if table in rules for stream in rules[table].streams]
