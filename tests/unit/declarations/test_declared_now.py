"""Declarations that are loaded again when a file has changed, and not before."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import LOOK_SECONDS, DeclaredNow


def test_declarations_follow_the_files(tmp_path: Path) -> None:
    now = [0.0]
    declared = DeclaredNow(tmp_path, clock=lambda: now[0])
    for table in ("bronze.flights", "silver.flights", "gold.flights"):
        write_table(tmp_path, table)
    write_continuous_stream(tmp_path, "first")
    before = declared.read()
    assert list(before.streams) == ["first"]

    file = write_continuous_stream(tmp_path, "second", reads="silver.flights", writes="gold.flights")
    assert declared.read() is before, "a moment ago is new enough"
    now[0] += LOOK_SECONDS
    assert sorted(declared.read().streams) == ["first", "second"]
    now[0] += LOOK_SECONDS
    known = declared.read()
    now[0] += LOOK_SECONDS
    assert declared.read() is known, "nothing has changed"

    digest = known.streams["second"].digest
    (tmp_path / "rows.sql").write_text("select id, at from rows\n")
    now[0] += LOOK_SECONDS
    assert declared.read().streams["second"].digest != digest, "the code belongs to the declaration"
    file.unlink()
    now[0] += LOOK_SECONDS
    assert list(declared.read().streams) == ["first"]
