"""The declarations of the guide to data quality are valid, and it names every rule that has a name."""

from __future__ import annotations

import re
from pathlib import Path

from tests.fixtures.readme import PROJECT, named_blocks

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.rule_declaration import BATCH_KINDS, ROW_KINDS

GUIDE = (PROJECT / "docs" / "guides" / "data-quality.md").read_text()


def test_its_declarations_are_valid(tmp_path: Path) -> None:
    for name, text in named_blocks(GUIDE):
        (tmp_path / name).write_text(text)

    loaded = load_declarations(tmp_path)

    assert loaded.problems == ()
    rules = loaded.stream("silver_orders").rules["orders"]
    assert [(rule.name, rule.on_failure) for rule in rules] == [
        ("total_is_positive", "quarantine"),
        ("known_country", "hold"),
        ("country_is_a_code", "warn"),
        ("enough_orders", "warn"),
        ("an_order_comes_once", "hold"),
        ("orders_are_fresh", "hold"),
        ("usual_totals", "warn"),
        ("country_is_listed", "fail"),
        ("ordered_after_opening", "fail"),
    ]


def test_it_names_every_rule() -> None:
    ends = [word.removeprefix("…_") for word in re.findall(r"`((?:expect|column|compound|…)_[a-z_]+)`", GUIDE)]
    assert [kind for kind in (*ROW_KINDS, *BATCH_KINDS) if not any(kind.endswith(end) for end in ends)] == []
