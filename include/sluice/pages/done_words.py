"""What a page says after an action: the word in its address, and the sentence for it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class DoneWord(StrEnum):
    """What was done, in the address to which a browser is sent after it."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RESET_BREAKER = "reset-breaker"
    RESET = "reset"
    BACKFILL = "backfill"
    MAINTAIN = "maintain"
    REJECT_BATCH = "reject-batch"


_IN_LEDGER = "{} is in the ledger; what follows appears below by itself."

DONE_SENTENCES: Mapping[DoneWord, str] = {
    DoneWord.START: _IN_LEDGER.format("Start"),
    DoneWord.STOP: _IN_LEDGER.format("Stop"),
    DoneWord.RESTART: _IN_LEDGER.format("Restart"),
    DoneWord.RESET_BREAKER: _IN_LEDGER.format("Reset-breaker"),
    DoneWord.RESET: "A new generation is open; the stream stays stopped until it is started.",
    DoneWord.BACKFILL: "Airflow has queued the runs of the backfill.",
    DoneWord.MAINTAIN: "Airflow has queued the maintenance run; its result appears below.",
    DoneWord.REJECT_BATCH: "Airflow has queued the rejection in the DAG stream_control; its result appears below.",
}
"""What is said of each."""
