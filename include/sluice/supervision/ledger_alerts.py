"""Alerts of the ledger itself: its server has hardly a connection left, or its clock was set back."""

from __future__ import annotations

from sluice.ledger.clock_jumps import follow_clock
from sluice.ledger.connection import connection_use
from sluice.ledger.stream_troubles import clear_trouble, record_report, record_trouble
from sluice.messages.durations import in_words
from sluice.supervision.alerts import Alert
from sluice.supervision.supervisor import Supervisor

CONNECTIONS_SHARE = 0.8
"""Of the connections that the ledger's server allows; beyond it a person is alerted."""

THE_LEDGER = "the ledger"
"""The subject of troubles of the ledger itself; no stream can have this name."""

FEW_CONNECTIONS = "few connections"

THE_CLOCK = "the ledger's clock"
SET_BACK = "clock set back"


def connection_alerts(supervisor: Supervisor) -> list[Alert]:
    """An alert while the server of the ledger has hardly a connection left: each driver holds two."""
    use = connection_use(supervisor.ledger)
    if use.used < use.allowed * CONNECTIONS_SHARE:
        clear_trouble(supervisor.ledger, THE_LEDGER, by=supervisor.launched_by)
        return []
    sentence = (
        f"{use.used} of {use.allowed} connections of the ledger's PostgreSQL are in use; when none is left, drivers "
        "stop after two minutes. Raise its max_connections, or put a connection pooler in front of it."
    )
    return [report_at_once(supervisor, THE_LEDGER, reason=FEW_CONNECTIONS, sentence=sentence)]


def clock_alerts(supervisor: Supervisor) -> list[Alert]:
    """An alert when the clock of the ledger's server was set back since the pass before."""
    ahead = follow_clock(supervisor.ledger)
    if not ahead:
        clear_trouble(supervisor.ledger, THE_CLOCK, by=supervisor.launched_by)
        return []
    sentence = (
        f"The clock of the ledger's PostgreSQL was set back by {in_words(ahead)}, as by a standby that took over. What "
        "was recorded in its future counts as of now; drivers that are lost are noticed within five minutes. See that "
        "the clocks of its servers are synchronised."
    )
    return [report_at_once(supervisor, THE_CLOCK, reason=SET_BACK, sentence=sentence)]


def report_at_once(supervisor: Supervisor, subject: str, *, reason: str, sentence: str) -> Alert:
    """Record a trouble of which a person is alerted at once."""
    ledger, by = supervisor.ledger, supervisor.launched_by
    trouble = record_trouble(ledger, subject, reason=reason, explanation=sentence, by=by)
    return Alert(stream=subject, sentence=sentence, reason=reason, is_new=record_report(ledger, trouble, by=by))
