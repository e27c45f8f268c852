"""Which offsets of an entry are moved where a topic that was created again is read from its first record."""

from __future__ import annotations

import pytest

from sluice.declarations.source_declarations import KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice_spark.run.identity_check import moved_offsets

DECLARATION = StreamDeclaration.model_validate(
    {
        "stream": "flights",
        "description": "d",
        "owner": "o",
        "mode": "continuous",
        "trigger": {"processing_time": "2 seconds"},
        "transformation": {"sql": "flights.sql"},
        "inputs": {
            "r": {"stream": {"kafka": {"connection": "k", "topics": ["t"]}}},
            "x": {"stream": {"iceberg": {"table": "a.b"}}},
        },
        "outputs": {"main": {"iceberg": {"table": "a.c"}}},
    }
)


def move(line: str, source: KafkaSource) -> str:
    """The offset of a topic, with its name."""
    return f"{','.join(source.topics or ())} of {line}"


@pytest.mark.parametrize(
    ("places", "lines", "moved"),
    [
        (("r", "r"), ["1", "1"], ["t of 1", "t of 1"]),
        (("r", "r (2)", "x"), ["1", "2", "3"], ["t of 1", "t of 2", "3"]),
        (("x", "r"), ["3", "-"], ["3", "-"]),
        (("r", "x"), ["1"], ["t of 1"]),
    ],
    ids=["an input with two places", "an input that is read twice", "no offset", "a place that was added"],
)
def test_the_offsets_of_all_places_are_moved(places: tuple[str, ...], lines: list[str], moved: list[str]) -> None:
    assert moved_offsets(lines, places, DECLARATION, move) == moved
