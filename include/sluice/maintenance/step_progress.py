"""What the attempts of one step of maintenance have done, so that its record says it whatever comes of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.maintenance.step_decision import RewriteCall


@dataclass(slots=True, kw_only=True)
class StepProgress:
    """What the attempts of a step have done. Each call of Spark is a commit by itself: one that was made stays, and so
    does the removal of references before an expiry.

    left: the calls of a compaction that no attempt has made yet. made: how many were made, with their `figures`.
    kept_deletes: why delete files that hide nothing stay, for a sentence.
    references: the tags and branches that are gone.
    """

    left: list[RewriteCall]
    figures: Counter[str] = field(default_factory=Counter)
    made: int = 0
    kept_deletes: str = ""
    references: tuple[str, ...] = ()

    @property
    def share(self) -> str:
        """How much of a compaction was made, for a sentence; empty for a single call. One that finds nothing commits
        nothing."""
        calls = self.made + len(self.left)
        return f"; {self.made} of {calls} parts were made" if calls > 1 else ""

    @property
    def result(self) -> Mapping[str, Any]:
        """What was committed, for the record."""
        return {**self.figures, **({"removed_references": list(self.references)} if self.references else {})}
