"""What cannot go together with Iceberg's own sink is refused at its place; the rest is said to promise less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.fixtures.streams import continuous_stream

from sluice.checkpoints.compatibility import fingerprint_of, refused_changes
from sluice.declarations.checks.combinations import weaker_promises

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

TABLE = "table: {}\ndescription: x\nowner: me\ncolumns: [{{name: word, type: string}}, {{name: n, type: long}}]\n"
STREAM: dict[str, Any] = {
    "stream": "s",
    "description": "x",
    "owner": "me",
    "mode": "continuous",
    "trigger": {"processing_time": "2 seconds"},
    "inputs": {"records": {"stream": {"kafka": {"connection": "c", "topics": ["t"]}}}},
    "transformation": {"python": "s.py:transform"},
}


def declare(folder: Folder, iceberg: dict[str, Any], parts: dict[str, Any]) -> None:
    """Write down a stream with an output that is delivered directly."""
    outputs = {"kept": {"iceberg": {"table": "silver.words", "delivery": "direct", **iceberg}}}
    for table in ("silver.words", "silver.others"):
        folder.write(f"{table}.table.yaml", TABLE.format(table))
    folder.write("s.py", "def transform(records): ...\n")
    given = STREAM | {"outputs": outputs | parts.pop("outputs", {})} | parts
    folder.write("s.stream.yaml", yaml.safe_dump(given, sort_keys=False))


def test_a_plain_append_is_valid_and_said_to_promise_less(folder: Folder) -> None:
    declare(folder, {}, {})

    loaded = folder.load()

    assert loaded.problems == ()
    (note,) = weaker_promises(loaded.streams.values())
    assert note.location.line is not None
    assert "`outputs.kept.iceberg.delivery`: direct promises less than staged" in note.sentence


@pytest.mark.parametrize(
    ("iceberg", "parts", "sentence"),
    [
        ({"mode": "merge", "keys": ["word"]}, {}, "works in the output mode `append`, got `update`"),
        ({"mode": "complete"}, {}, "works in the output mode `append`, got `complete`"),
        ({"mode": "overwrite_partitions"}, {}, "`outputs.kept.iceberg.delivery`: Iceberg's own sink adds rows"),
        ({"publish_every": "1 minute"}, {}, "`outputs.kept.iceberg.publish_every`: belongs to staged delivery"),
        ({"max_held_batches": 3}, {}, "`outputs.kept.iceberg.max_held_batches`: belongs to staged delivery"),
        ({}, {"quarantine": True}, "refused rows are a second output"),
        ({}, {"outputs": {"other": {"iceberg": {"table": "silver.others"}}}}, "a stream with one output"),
        ({}, {"outputs": {"shown": {"console": {}}}}, "a stream with one output"),
        (
            {},
            {"inputs": {"r": {"stream": {"kafka": {"connection": "c", "topics": ["t"], "on_data_loss": "count"}}}}},
            "`inputs.r.stream.kafka.on_data_loss`: a loss is counted before a batch is handed over",
        ),
        (
            {},
            {"inputs": {"f": {"stream": {"files": {"connection": "c", "format": "text", "afterwards": "delete"}}}}},
            "`inputs.f.stream.files.afterwards`: a file is put away when the next batch is handed over",
        ),
    ],
)
def test_what_needs_a_place_before_the_commit_is_refused(
    folder: Folder, iceberg: dict[str, Any], parts: dict[str, Any], sentence: str
) -> None:
    declare(folder, iceberg, parts)
    assert [problem for problem in folder.problems() if sentence in problem], folder.problems()


@pytest.mark.parametrize(("before", "after"), [("staged", "direct"), ("direct", "staged")])
def test_a_checkpoint_stays_with_its_way(before: str, after: str) -> None:
    def fingerprint(delivery: str) -> dict[str, str]:
        output = {"rows": {"iceberg": {"table": "silver.rows", "delivery": delivery}}}
        return fingerprint_of(continuous_stream(outputs=output).declaration)

    phrase = f"delivery of rows was `{before}` and is now `{after}`"
    assert refused_changes(fingerprint(before), fingerprint(after)) == (phrase,)
    assert refused_changes(fingerprint(before), fingerprint(before)) == ()
