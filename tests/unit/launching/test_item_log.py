"""The log of an application is read item by item."""

from __future__ import annotations

from uuid import UUID

from sluice.work.pools import item_label, lines_of_item

ITEM = UUID("3f2b8c1d-0000-4000-8000-000000000001")
OTHER = UUID("99999999-0000-4000-8000-000000000001")

LOG = """\
left over from an earlier line
2026-11-26T01:06:40Z INFO the application begins
2026-11-26T01:06:41Z INFO [3f2b8c1d] batch 1: 5 in, 5 copies, 0.41 s
2026-11-26T01:06:41Z ERROR [99999999] the job failed
Traceback (most recent call last):
  File "x.py", line 1, in <module>

ValueError: [3f2b8c1d] is not a number
2026-11-26T01:06:42Z WARN [3f2b8c1d] Tasks: Retrying task after failure
2026-11-26T01:06:43Z ERROR [3f2b8c1d] a heartbeat failed
Traceback (most recent call last):
ConnectionError: closed
2026-11-26T01:06:44Z INFO the item [3f2b8c1d] has ended
""".splitlines(keepends=True)


def test_an_item_has_its_lines_with_those_that_continue_them() -> None:
    assert list(lines_of_item(LOG, ITEM)) == [LOG[2], *LOG[8:12]]


def test_a_traceback_belongs_to_the_line_before_it() -> None:
    assert list(lines_of_item(LOG, OTHER)) == LOG[3:8]


def test_an_item_without_a_line_has_none() -> None:
    assert list(lines_of_item(LOG, UUID(int=0))) == []


def test_lines_without_their_ends_are_read_alike() -> None:
    bare = [line.rstrip("\n") for line in LOG]
    assert list(lines_of_item(bare, OTHER)) == bare[3:8]


def test_a_label_is_eight_digits() -> None:
    assert item_label(ITEM) == "3f2b8c1d"
