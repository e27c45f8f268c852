"""`docs/declarations.md` says what the models say, and its examples are valid."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.declarations_reference import FILE, INTRODUCTION, render

from sluice.declarations.load_declarations import load_declarations


def test_the_reference_is_what_the_models_say() -> None:
    assert FILE.read_text() == render(), "write it again: python -m tests.architecture.declarations_reference"


def test_its_examples_are_valid(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n# (\S+)\n(.*?)```", INTRODUCTION, re.DOTALL)
    assert len(examples) == 3
    for name, text in examples:
        (tmp_path / name).write_text(text)
    (tmp_path / "bronze.orders.table.yaml").write_text(
        dict(examples)["silver.orders.table.yaml"].replace("silver", "bronze")
    )
    (tmp_path / "silver_orders.sql").write_text("SELECT * FROM records")
    assert load_declarations(tmp_path).problems == ()
