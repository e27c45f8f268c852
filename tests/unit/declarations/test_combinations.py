"""Every combination of input, output, trigger and mode is allowed, or refused with its reason, file and line."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from typing import TYPE_CHECKING

import pytest
import yaml
from tests.matrix.declaring import Places, declared_parts, query

from sluice.declarations.checks.combinations import (
    INPUTS,
    MODES,
    OUTPUTS,
    TRIGGERS,
    Combination,
    every_combination,
    judge,
)
from sluice.declarations.input_declaration import SourceDeclaration
from sluice.declarations.output_declaration import OutputDeclaration
from sluice.declarations.stream_declaration import TriggerDeclaration
from sluice.errors import DeclarationError, NotYetError

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

TABLE = "table: {}\ndescription: x\nowner: me\ncolumns: [{{name: word, type: string}}, {{name: n, type: long}}]\n"


def test_the_combinations_are_made_of_all_kinds_that_can_be_declared() -> None:
    assert set(INPUTS) == set(SourceDeclaration.model_fields)
    assert set(OUTPUTS) == {*OutputDeclaration.model_fields, "iceberg_direct"}  # one kind, delivered in two ways
    assert set(TRIGGERS) == set(TriggerDeclaration.model_fields)
    assert len(list(every_combination())) == len(INPUTS) * len(OUTPUTS) * len(TRIGGERS) * len(MODES)


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_what_is_forbidden_is_refused_where_it_is_declared_and_nothing_else(
    folder: Folder, output: str, trigger: str
) -> None:
    combinations = {
        f"s_{source}_{mode}": Combination(input=source, output=output, trigger=trigger, mode=mode)
        for source, mode in product(INPUTS, MODES)
    }
    for table in ("bronze.words", *(f"silver.{name}" for name in combinations)):
        folder.write(f"{table}.table.yaml", TABLE.format(table))
    folder.write("noting.py", "def note(rows, batch): ...\n")
    queries = {text: f"{place}.sql" for place, text in enumerate({query(one) for one in combinations.values()})}
    for text, file in queries.items():
        folder.write(file, text)
    for name, combination in combinations.items():
        transformation = {"sql": queries[query(combination)]}
        declaration = {"stream": name, "description": name, "owner": "me", "transformation": transformation}
        parts = declared_parts(combination, Places(target_table=f"silver.{name}"))
        folder.write(f"{name}.stream.yaml", yaml.dump(declaration | parts, Dumper=yaml.CSafeDumper, sort_keys=False))

    problems: defaultdict[str, list[DeclarationError]] = defaultdict(list)
    for problem in folder.load().problems:
        if not isinstance(problem, NotYetError) or "hudi" in problem.problem:
            problems[problem.location.file.name.removesuffix(".stream.yaml")].append(problem)

    for name, combination in combinations.items():
        assert bool(judge(combination)) == bool(problems[name]), (combination, problems[name])
        assert all(problem.location.line for problem in problems[name])


RECORD = """\
stream: s
description: x
owner: me
mode: continuous
trigger: {{{trigger}}}
inputs:
  records:
    stream:
      kafka: {{connection: c, topics: [t]}}
outputs:
  sent:
    kafka: {{connection: c, topic: u, mode: {mode}}}
transformation: {{python: s.py:transform}}
"""


@pytest.mark.parametrize(
    ("trigger", "mode", "change", "sentences"),
    [
        ("real_time: 5 seconds", "update", ("", ""), []),
        ("continuous_processing: 1 second", "append", ("", ""), []),
        (
            "real_time: 5 seconds",
            "append",
            ("", ""),
            [
                "s.stream.yaml:12: `outputs.sent.kafka`: the trigger real_time works in the output mode `update`, got "
                "`append`: Spark 4.1 runs it in no other."
            ],
        ),
        (
            "real_time: 1 second",
            "update",
            ("", ""),
            [
                "s.stream.yaml:5: `trigger.real_time`: Spark's batches of this mode last 5 seconds or longer, got 1; "
                "records are handed on at once all the same."
            ],
        ),
        (
            "continuous_processing: 1 second",
            "append",
            ("topics: [t]}\n", "topics: [t]}\n    watermark: {column: timestamp, delay: 1 hour}\n"),
            [
                "s.stream.yaml:10: `inputs.records.watermark`: continuous_processing keeps no event time: "
                "no record is late."
            ],
        ),
        (
            "continuous_processing: 1 second",
            "append",
            ("kafka: {connection: c, topics: [t]}", "rate: {}"),
            [
                "s.stream.yaml:9: `inputs.records.stream.rate`: continuous_processing reads kafka: of the other inputs "
                "Spark can hand on no record by itself."
            ],
        ),
        (
            "real_time: 5 seconds",
            "update",
            ("outputs:\n", "outputs:\n  kept:\n    memory: {mode: update}\n"),
            [
                "s.stream.yaml:12: `outputs.kept.memory`: real_time writes kafka: there is no batch that memory could "
                "take under its key.",
                "s.stream.yaml:10: `outputs`: real_time has one output: each record is handed on once.",
            ],
        ),
    ],
)
def test_a_stream_without_batches_has_one_input_and_one_output_of_kafka(
    folder: Folder, trigger: str, mode: str, change: tuple[str, str], sentences: list[str]
) -> None:
    folder.write("s.py", "def transform(records):\n    return records\n")
    folder.write("s.stream.yaml", RECORD.format(trigger=trigger, mode=mode).replace(*change))
    assert sorted(folder.problems()) == sorted(sentences)
