"""Every example of the guide to inputs is a declaration that works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.declarations.input_declaration import SourceDeclaration
from sluice.declarations.load_declarations import load_declarations

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "inputs.md").read_text()
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)]

TABLE = "table: {name}\ndescription: d\nowner: o\ncolumns:\n"
TABLE += "  - {{name: id, type: long}}\n  - {{name: payload, type: binary}}\n"


def write_stream(folder: Path, inputs: dict[str, Any]) -> None:
    """A continuous stream with these inputs, and one that arrives when all are looked up."""
    arriving: dict[str, Any] = (
        {} if any("stream" in given for given in inputs.values()) else {"ticks": {"stream": {"rate": {}}}}
    )
    declaration = {
        "stream": "example",
        "description": "d",
        "owner": "o",
        "mode": "continuous",
        "trigger": {"processing_time": "1 second"},
        "inputs": inputs | arriving,
        "transformation": {"python": "example.py:transform"},
        "quarantine": any(key in yaml.safe_dump(inputs) for key in ("value:", "on_malformed: quarantine")),
        "outputs": {"main": {"iceberg": {"table": "bronze.example"}}},
    }
    tables = [source["table"] for given in inputs.values() for way in given.values() for source in _icebergs(way)]
    for name in ("bronze.example", *tables):
        (folder / f"{name}.table.yaml").write_text(TABLE.format(name=name))
    (folder / "example.py").write_text("def transform(**inputs):\n    ...\n")
    (folder / "example.stream.yaml").write_text(yaml.safe_dump(declaration))


def _icebergs(way: Any) -> list[dict[str, Any]]:
    return [way["iceberg"]] if isinstance(way, dict) and "iceberg" in way else []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: "-".join(example["inputs"]))
def test_an_example_is_a_valid_declaration(tmp_path: Path, example: dict[str, Any]) -> None:
    write_stream(tmp_path, example["inputs"])
    assert [str(problem) for problem in load_declarations(tmp_path).problems] == []


def test_every_kind_of_source_has_an_example() -> None:
    ways = [way for example in EXAMPLES for given in example["inputs"].values() for way in given.values()]
    shown = {kind for way in ways if isinstance(way, dict) for kind in way}
    assert set(SourceDeclaration.model_fields) <= shown
