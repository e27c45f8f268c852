"""What the ledger has recorded of batches that no table holds any more. No Spark."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.positions.test_adoption_dangers import set_back
from tests.integration.positions.test_repair_commands import filled, folder
from tests.integration.positions.test_rewind_dangers import with_files_beside
from tests.integration.positions.test_states_taken_back import published_all

__all__ = ["copier"]


@pytest.mark.full  # every run: `test_taken_back.py`
def test_what_a_repair_has_the_ledger_forget_is_counted_as_read_again(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table was set back to batch 1 beside an older checkpoint without its `metadata`; another output has got the
    later numbers, and would leave them out."""
    published_all(copier)
    shutil.rmtree(folder(copier))
    (filled(copier, batches=2) / "metadata").unlink()
    set_back(copier.bench, copier.bench.target().snapshots()[-3].snapshot_id)
    code, _, errors = typed(["table", "adopt", copier.bench.output.target, "--reread", "--yes"], capsys)
    assert code == 0, errors
    words = ["stream", "repair", copier.stream, "--dry-run", "--json"]

    (plan,) = json.loads(typed(words, capsys)[1])["plans"]
    with_files_beside(copier)
    (beside_files,) = json.loads(typed(words, capsys)[1])["plans"]

    assert (plan["at_stake"], plan["rows"], plan["evidence"]["recorded"]) == ("rows", 1, 1)
    assert plan["refusals"] == []
    assert "it has outputs without a mark" in beside_files["refusals"][0]["sentence"]


def test_a_table_is_not_read_again_beside_an_output_that_has_got_the_numbers(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    published_all(copier)
    shutil.rmtree(folder(copier))
    filled(copier, batches=2)
    set_back(copier.bench, copier.bench.target().snapshots()[-3].snapshot_id)
    with_files_beside(copier)

    code, shown, _ = typed(["table", "adopt", copier.bench.output.target, "--reread", "--dry-run"], capsys)

    assert (code, "it has outputs without a mark" in shown) == (1, True), shown
