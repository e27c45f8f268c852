"""Maintains all tables in one process as far as no Spark is needed, and names those that need more.

An hourly run finds most tables in order. Their plans, their pins and the records of what was seen cost some requests to
the catalog and the ledger, and neither a task nor an application of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import LedgerUnreachableError, SluiceError
from sluice.ledger.connection import open_ledger
from sluice.maintenance.maintenance_records import run_sentences
from sluice.maintenance.run_maintenance import TableMaintenance, open_maintenance, problems_after
from sluice.settings import Settings

_log = logging.getLogger(__name__)

AT_ONCE = 4
"""How many tables are looked at in parallel, each with two connections to the ledger: enough to hide the latency of
catalog and object store; the processor time is the same."""


def due_tables(
    settings: Settings, declarations: Declarations, tables: Sequence[str], *, launched_by: str
) -> tuple[str, ...]:
    """Maintain tables as far as that needs no Spark.

    Parameters
    ----------
    launched_by: who asked, for people who read it.

    Returns
    -------
    The tables that are left, in the order given: a step needs Spark, or a person must see how the run ended, or the
    table could not be observed. Nothing is recorded of a table that needs Spark.

    Raises
    ------
    LedgerUnreachableError: when the ledger cannot be reached.
    LakehouseError: when the catalog cannot be reached or refuses the credential.
    """
    lists = [tables[first::AT_ONCE] for first in range(AT_ONCE)]

    def left_among(names: Sequence[str]) -> list[str]:
        with open_ledger(settings.ledger_url, is_brief=True) as ledger:
            maintenance = open_maintenance(settings, ledger, declarations, launched_by=launched_by)
            return [name for name in names if _is_left(maintenance, name)]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        left = {name for names in pool.map(left_among, filter(None, lists)) for name in names}
    return tuple(name for name in tables if name in left)


def _is_left(maintenance: TableMaintenance, name: str) -> bool:
    """Whether a table needs a task of its own, after what can be done here. No table keeps the others from it."""
    try:
        run = maintenance.maintain_without_spark(name)
        problems = problems_after(maintenance.ledger, run) if run is not None else ()
    except LedgerUnreachableError:
        raise
    except SluiceError as error:
        _log.warning("%s cannot be maintained here: %s", name, error)
        return True
    except Exception:  # noqa: BLE001  # its own task meets the same error, and fails with it
        _log.exception("%s cannot be maintained here", name)
        return True
    if run is None:
        _log.info("%s: its maintenance needs Spark", name)
        return True
    for sentence in (*run_sentences(run), *problems):
        _log.info("%s", sentence)
    return bool(problems)
