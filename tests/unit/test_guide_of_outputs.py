"""What the guide of outputs shows can be declared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.fixtures.readme import PROJECT, named_blocks

from sluice.declarations.checks.combinations import TRIGGERS
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.output_declaration import OutputDeclaration

GUIDE = (PROJECT / "docs" / "guides" / "outputs.md").read_text()
OUTPUTS = frozenset(OutputDeclaration.model_fields)
EXAMPLES = dict(named_blocks(GUIDE))
STREAM = {
    "description": "an example of the guide",
    "owner": "me",
    "mode": "incremental",
    "schedule": {"cron": "@daily"},
    "inputs": {"records": {"stream": {"kafka": {"connection": "flights_kafka", "topics": ["flights"]}}}},
    "transformation": {"python": "sending.py:transform"},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_valid(name: str, tmp_path: Path) -> None:
    stream = name.partition(".")[0]
    declaration = {"stream": stream, **STREAM} | yaml.safe_load(EXAMPLES[name])
    if declaration["mode"] == "continuous":
        del declaration["schedule"]
    (tmp_path / f"{stream}.stream.yaml").write_text(yaml.safe_dump(declaration, sort_keys=False))
    for output in declaration["outputs"].values():
        for table in [output["iceberg"]] if "iceberg" in output else []:
            names = {"carrier", *table.get("keys", ()), *table.get("ordering_columns", ())}
            columns = [{"name": column, "type": "string"} for column in sorted(names)]
            declared = {"table": table["table"], "description": "x", "owner": "me", "columns": columns}
            (tmp_path / f"{table['table']}.table.yaml").write_text(yaml.safe_dump(declared, sort_keys=False))
    (tmp_path / "sending.py").write_text("def transform(records): ...\n\n\ndef send_rows(rows, batch): ...\n")
    assert load_declarations(tmp_path).problems == ()


def test_every_output_and_trigger_has_a_row() -> None:
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", GUIDE, re.MULTILINE))
    assert {*OUTPUTS, *TRIGGERS} <= rows


def test_every_output_but_the_refused_one_has_an_example() -> None:
    shown = {kind for text in EXAMPLES.values() for one in yaml.safe_load(text)["outputs"].values() for kind in one}
    assert shown == OUTPUTS - {"hudi"}
