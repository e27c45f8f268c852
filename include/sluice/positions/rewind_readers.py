"""Takes the streams that have read what goes back together with the stream that wrote it: the last reader first.

Each stream has a plan of its own, with its tables, refusals and readers. They are carried out in an order in which no
reader is behind what it reads, and only when none is refused; so an interrupted one is completed by typing it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.positions.rewind_plan import RewindPlan, plan_rewind
from sluice.positions.rewind_stream import rewind_stream
from sluice.publication.crash_points import Reached, unnoticed
from sluice.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindWithReaders:
    """A stream and its readers.

    stream, batch: what is taken back, and to where. The readers go back to their newest batch before that.
    """

    ledger: Ledger
    catalog: Catalog
    declarations: Declarations
    settings: Settings
    stream: str
    batch: int

    def plans(self) -> tuple[RewindPlan, ...]:
        """One plan for each stream, in the order in which they are carried out: that of the stream itself is the last.

        Raises
        ------
        SluiceError: as `plan_rewind`.
        """
        batches = self._batches()
        order = tuple(_last_first(self.stream, batches))
        return tuple(self._plan(name, batches[name].seen.batch, order[:place]) for place, name in enumerate(order))

    def carry_out(
        self, planned: Sequence[str], *, asked_by: str, reached: Reached = unnoticed
    ) -> tuple[RewindPlan, ...]:
        """Take all of them back, or none when one is refused.

        Parameters
        ----------
        planned: the digests of the plans that a person agreed to.

        Raises
        ------
        UsageError: when the plans are others than were shown. UnpublishableError: when one is refused.
        SluiceError: as `rewind_stream`; typing it again completes it.
        """
        plans = self.plans()
        if [one.digest for one in plans] != list(planned):
            raise UsageError(
                f"The plan to take {self.stream} back with its readers is another one than was shown.",
                next_step="Look at it again: something has changed since.",
            )
        for one in plans:
            one.require_unrefused()
        return tuple(self._carry_out(one, asked_by=asked_by, reached=reached) for one in plans)

    def _carry_out(self, plan: RewindPlan, *, asked_by: str, reached: Reached) -> RewindPlan:
        return rewind_stream(
            self.ledger,
            self.catalog,
            self.declarations,
            self.settings,
            stream=plan.subject,
            batch=plan.seen.batch,
            planned=plan.digest,
            asked_by=asked_by,
            reached=reached,
        )

    def _plan(self, stream: str, batch: int, taken: Sequence[str] = ()) -> RewindPlan:
        return plan_rewind(
            self.ledger, self.catalog, self.declarations, self.settings, stream=stream, batch=batch, taken=taken
        )

    def _batches(self) -> Mapping[str, RewindPlan]:
        """Each stream, planned to the batch that all it reads lets it keep. Going back further may reach more readers,
        and a reader of two streams goes back as far as both need."""
        found = {self.stream: self._plan(self.stream, self.batch)}
        waiting = [self.stream]
        while waiting:
            for reader in found[waiting.pop()].seen.readers:
                known = found.get(reader.stream)
                if reader.back_to is None or (known is not None and known.seen.batch <= reader.back_to):
                    continue
                found[reader.stream] = self._plan(reader.stream, reader.back_to)
                waiting.append(reader.stream)
        return found


def _last_first(stream: str, plans: Mapping[str, RewindPlan]) -> Iterator[str]:
    """The streams that go back, each behind its readers."""
    done: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        for reader in plans[name].seen.readers:
            if reader.stream in plans and reader.stream not in (*done, *path):
                visit(reader.stream, (*path, reader.stream))
        done[name] = None

    visit(stream, (stream,))
    return iter(done)
