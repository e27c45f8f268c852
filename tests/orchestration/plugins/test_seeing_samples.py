"""Who sees records in a quarantine: a permission of its own, also where the auth manager knows no such permissions."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a library of Airflow's imports FastAPI's test client, which warns of its own
    from sluice_airflow.pages.page_access import SAMPLES_VIEW, Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Permitted(Reader):
    """A person with these permissions. views: the custom views that they may read; all when unset."""

    views: frozenset[str] | None
    edits: frozenset[str] = frozenset()

    def may_act_on(self, streams: Iterable[str]) -> frozenset[str]:
        """The DAGs that they may edit."""
        return frozenset(streams) & self.edits

    def may_view(self, name: str) -> bool:
        """Whether they may read a custom view."""
        return self.views is None or name in self.views


EDITS = frozenset({"clicks"})


@pytest.mark.parametrize(
    ("views", "edits", "sees"),
    [
        (frozenset({SAMPLES_VIEW}), frozenset(), True),
        (frozenset({SAMPLES_VIEW}), EDITS, True),
        (frozenset({"another view"}), EDITS, False),
        (frozenset(), EDITS, False),
        (None, frozenset(), False),
        (None, frozenset({"another"}), False),
        (None, EDITS, True),
    ],
    ids=[
        "the permission alone is enough",
        "both",
        "another view is another permission",
        "who edits the DAG needs the permission too",
        "every view is permitted: a viewer",
        "every view is permitted: edits another DAG",
        "every view is permitted: edits this DAG",
    ],
)
def test_the_permission_decides_or_where_there_is_none_the_right_to_edit(
    views: frozenset[str] | None, edits: frozenset[str], sees: bool
) -> None:
    assert Permitted(user=None, name="ann", views=views, edits=edits).may_see_samples("clicks") is sees
