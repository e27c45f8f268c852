"""Figures and times as a person reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sluice.pages.page_figures import (
    NOTHING,
    age_words,
    count_text,
    duration_text,
    moment_text,
    rate_text,
    short_name,
    size_text,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, NOTHING), (0, "0"), (81204, "81,204"), (2_100_000, "2.1 M"), (3_000_000_000, "3.0 G")],
)
def test_count(count: int | None, text: str) -> None:
    assert count_text(count) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [("silver.clicks", "silver.clicks"), ("orders_of_customers_7", "orders_o…omers_7"), ("x" * 17, "xxxxxxxx…xxxxxxx")],
)
def test_a_long_name_keeps_its_beginning_and_its_end(name: str, text: str) -> None:
    assert short_name(name, 16) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, NOTHING), (812, "812 B"), (12_900_000, "12.3 MiB"), (3 * 1024**4, "3.0 TiB")],
)
def test_size(size: int | None, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(("rate", "text"), [(0, "0"), (0.42, "0.4"), (412, "412"), (18_200, "18.2k")])
def test_rate(rate: float, text: str) -> None:
    assert rate_text(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "400 ms"), (9.94, "9.9 s"), (59.6, "1 min"), (250, "4 min 10 s"), (7200, "2 h"), (90_000, "1 d 1 h"),
     (86_460, "1 d"), (-5, "0 s"), (0, "0 s")],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert duration_text(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "just now"), (1, "just now"), (59, "59 s ago"), (2280, "38 min ago"), (90_000, "1 d ago")],
)
def test_age(seconds: float, text: str) -> None:
    assert age_words(timedelta(seconds=seconds)) == text


def test_what_is_unknown_has_no_text() -> None:
    assert {age_words(None), duration_text(None), moment_text(None)} == {NOTHING}
    assert moment_text(datetime(2026, 11, 22, 14, 1, 58, tzinfo=UTC)) == "2026-11-22 14:01:58 UTC"
