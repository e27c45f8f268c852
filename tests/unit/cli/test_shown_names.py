"""What a terminal shows of a sender's names is text, whatever they are."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from sluice.cli import event_verbs
from sluice.cli.stream_rendering import schemas_table
from sluice.cli.terminal import console
from sluice.declarations.value_declaration import Column
from sluice.ledger.events import Actor, EventObservation, EventSubject
from sluice.ledger.source_schemas import FieldChange, SourceSchema
from sluice.sources.source_types import answer_to


@pytest.mark.parametrize("name", ["[/x]", "price[usd]", ":x:"])
def test_a_column_of_a_file_is_no_markup(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kinds: dict[str, pa.DataType] = {"id": pa.int64(), name: pa.string()}
    answer = answer_to((Column(name="id", type="long"),), pa.schema(kinds), is_fit=True)
    seen = SourceSchema(
        stream="s",
        input="i",
        source="parquet files in in",
        fields={"id": "int64", name: "string"},
        answer=answer,
        seen_at=datetime.now(UTC),
        changes=(FieldChange(field="other", now="string"),),
    )

    console().print(schemas_table([seen]), width=500)

    assert f"without {name}." in " ".join(capsys.readouterr().out.split())


def test_an_event_about_such_a_column_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """`sluice stream events` ends with an error for as long as the event is among the newest."""
    event = EventObservation(
        number=1,
        recorded_at=datetime.now(UTC),
        subject=EventSubject.STREAM,
        name="s",
        actor=Actor.component("driver"),
        action="see_schema",
        reason="source_schema_changed",
        explanation="The schema of the input i changed, parquet files in in: `[/x]` is new: string.",
        run_id=None,
        evidence={},
    )

    console().print(event_verbs.events_table([event]), width=500)

    assert "`[/x]` is new" in " ".join(capsys.readouterr().out.split())
