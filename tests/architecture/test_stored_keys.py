"""Keys on users' tables and locks of the ledger each stand in one module, and `docs/keys-and-locks.md` lists them."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec

from tests.architecture.source_modules import ROOT, SourceModule, source_modules

from sluice import stored_keys
from sluice.ledger.locks import LockSpace

DOCUMENT = (ROOT / "docs" / "keys-and-locks.md").read_text()

KEY = re.compile(r"sluice\.[a-z.-]*|sluice/|_sluice_trash_|sluice_[a-z_]*_|_sluice_operation")
"""The form of a key of Sluice in a literal; `sluice.ledger` has it too and is a module."""

NOT_STORED = {
    "sluice.yaml": "the file of a project",
    "sluice.kpl": "a package of Protobuf",
    "sluice.pages.plan": "the salt of a signature",
    "sluice.retention": "a setting of a transaction of PostgreSQL",
    "sluice.": "the prefix of our own modules",
    "sluice.cli.": "the prefix of our own modules",
    "sluice.watermark.": "a metric of Spark",
    "sluice.late.": "a metric of Spark",
    "sluice.reach.": "a metric of Spark, in plans that nothing executes",
    "sluice.late-watermark.": "a metric of Spark",
    "sluice.input.": "a metric of Spark",
    "sluice.rejected.": "a metric of Spark",
    "sluice.facts.": "a metric of Spark",
    "sluice.tombstones.": "a metric of Spark",
    "sluice.text": "metadata of columns in plans of Spark, which nothing stores",
}
"""Literals that look like keys, and what they are; nothing of it is written onto a table."""


def keys() -> set[str]:
    """Every key of `sluice.stored_keys`."""
    return {value for name, value in vars(stored_keys).items() if name.isupper()}


def rows(title: str) -> set[str]:
    """What stands between backticks in the first column of the table of a section."""
    section = DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def literals_of(module: SourceModule) -> set[str]:
    """The literals of a module that have the form of a key and are none of its documentation."""
    return {
        node.value
        for node in module.nodes()
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and KEY.fullmatch(node.value)
    }


def is_module(name: str) -> bool:
    """Whether a dotted name is one of ours."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_keys_are_written_in_one_module() -> None:
    wrong = [
        f"{module.place} has {literal!r}: take it from sluice.stored_keys"
        for module in source_modules()
        if module.name != "sluice.stored_keys"
        for literal in sorted(literals_of(module) - NOT_STORED.keys())
        if not is_module(literal)
    ]

    assert wrong == []


def test_the_document_lists_every_key() -> None:
    assert rows("Which keys stand on my tables") == keys()


def test_every_key_is_recognised_by_its_form() -> None:
    assert [key for key in keys() if not KEY.match(key)] == []


def test_the_document_lists_every_lock() -> None:
    assert rows("Which locks there are") == {space.name for space in LockSpace}


def test_advisory_locks_are_taken_in_one_module() -> None:
    allowed = {
        "sluice.ledger.locks",
        "sluice.ledger.backfill_requests",  # the locks of its applications go with it
    }

    wrong = [
        module.place
        for module in source_modules()
        if module.name not in allowed and re.search(r"\bpg_(?:try_)?advisory_", module.path.read_text())
    ]

    assert wrong == []
