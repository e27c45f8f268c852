"""Charts as paths."""

from __future__ import annotations

from sluice.pages.page_figures import line_path, stacked_paths, top_of


def test_a_line_runs_from_edge_to_edge_and_leaves_gaps() -> None:
    stroke, area = line_path([0, 10, None, 5], width=30, height=12, top=10)

    assert stroke == "M0 12L10 2M30 7h7.5"
    assert area == "M0 12L10 2V12H0ZM30 7h7.5V12H30Z"


def test_nothing_known_draws_nothing() -> None:
    assert line_path([None, None], width=30, height=12, top=1) == ("", "")
    assert stacked_paths([], width=30, height=12, top=1) == ()
    assert top_of([None]) == 1.0


def test_stacked_areas_lie_on_each_other() -> None:
    lower, upper = stacked_paths([[5, 5], [5, None]], width=10, height=12, top=10)

    assert lower == "M0 7L10 7L10 12L0 12Z"
    assert upper == "M0 2L10 7L10 7L0 7Z"
