"""A lease in the ledger: the right to run a stream, with a fencing token that only rises."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

LEASE_SECONDS = 240.0
"""How long a lease is valid after its newest renewal, by the database's clock. It bounds how long a stream stays
without a driver while it is unknown whether the old one lives; an observed death frees the lease at once. The sum of
how long a driver works without the ledger and how long it may then take to stop (`sluice.supervision.held_lease`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseObservation:
    """The lease of a stream. All times are the database's.

    token: of the newest run that was ever admitted. It is never given twice and never falls, even when runs are
        archived, or when an older copy of the database replaces it.
    run_id: that run.
    expires_at: until then no other run may run the stream; unset when the run has ended and the lease is free.
    """

    stream: str
    token: int
    run_id: str
    renewed_at: datetime
    expires_at: datetime | None = None

    def is_held(self, *, at: datetime) -> bool:
        """Whether only its holder may run the stream at that time of the database."""
        return self.expires_at is not None and at < self.expires_at
