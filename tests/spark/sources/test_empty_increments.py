"""Whether an increment would find something to do, seen from the ledger and the heads of real sources."""

from __future__ import annotations

from pyiceberg.expressions import EqualTo
from tests.fixtures.workshop import Workshop

from sluice.sources.source_heads import SourceHeads
from sluice.supervision.source_watch import has_nothing_to_do, observe_increment


def is_empty(workshop: Workshop, stream: str) -> bool:
    """Whether an increment of the stream would find nothing to do."""
    return has_nothing_to_do(
        observe_increment(workshop.ledger, SourceHeads(workshop.settings), workshop.stream(stream))
    )


def test_an_increment_is_empty_until_its_source_changes(workshop: Workshop) -> None:
    columns = {"id": "long"}
    source, target = (workshop.declare_table(name, columns) for name in ("source", "target"))
    name = f"s{workshop.namespace}"
    workshop.declare_stream(
        name,
        sql="SELECT * FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"copies": {"iceberg": {"table": target}}},
    )
    assert not is_empty(workshop, name)
    workshop.append("source", [{"id": 1}, {"id": 2}])
    workshop.run_supervised(name)
    assert is_empty(workshop, name)

    workshop.append("source", [{"id": 3}])
    assert not is_empty(workshop, name)
    workshop.run_supervised(name)
    assert is_empty(workshop, name)

    workshop.table("source").delete(EqualTo(term="id", value=1))
    assert not is_empty(workshop, name), "the stream is declared to fail at it, so a run has to say so"
