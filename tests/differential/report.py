"""A counterexample as somebody can repeat it: the declaration, the rows, and what happened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tests.differential.case import Case, Output
from tests.differential.column_kinds import json_value
from tests.differential.queries import has_one_query, python_transformation, sql_transformation


def reproduction(case: Case, wrong: Sequence[str]) -> str:
    """What to declare, what to write, and what differs then."""
    query = sql_transformation(case) if has_one_query(case) else python_transformation(case)
    lines = [
        f"seed {case.seed}",
        f"source: {case.source}, columns {case.source_columns}, watermark {_seconds(case.delay_seconds)}",
        *([f"each batch begins with {case.malformed} records that cannot be decoded"] if case.malformed else []),
        f"targets: columns {case.output_columns}",
        *(f"  output{number}: {_shown(output)}" for number, output in enumerate(case.outputs)),
        "transformation:",
        *(f"  {line}" for line in query.splitlines()),
    ]
    if case.join is not None:
        lines += ["lookup:", *(f"  {json.dumps(row)}" for row in case.lookup)]
    for turn, rows in enumerate(case.turns):
        lines += [f"turn {turn}:{_events(case, turn)}", *(f"  {_row(row)}" for row in rows)]
    return "\n".join([*lines, "differs:", *(f"  {line}" for line in wrong)])


def _events(case: Case, turn: int) -> str:
    events = []
    if case.evolution is not None and case.evolution.turn == turn:
        events.append(f"before it {case.evolution.kind} {case.evolution.partitioning or ''}".rstrip())
    if case.crash is not None and case.crash.turn == turn:
        events.append(f"the driver dies at {case.crash.point or 'the end, before its last commit is noted'}")
        events += [f"then the lookup gets {_row(row)}" for row in case.lookup_added]
    return f" {'; '.join(events)}" if events else ""


def _shown(output: Output) -> str:
    given = {one.name: getattr(output, one.name) for one in fields(output)}
    return ", ".join(f"{name}={value!r}" for name, value in given.items() if value)


def _row(row: Any) -> str:
    return json.dumps({name: json_value(value) for name, value in row.items()}, ensure_ascii=False)


def _seconds(delay: int | None) -> str:
    return "none" if delay is None else f"{delay} seconds on moment"
