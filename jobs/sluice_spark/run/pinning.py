"""Pins the positions of a stream from its driver: at the start, every few minutes while it runs, and at its end.

Purpose: maintenance pins the positions of readers once an hour. Until then a new stream, and a stream whose first batch
takes long, would be without protection.

How it works: a thread beside the query, so that no batch waits for a pin. The first pin is set before the query starts,
and the last one after it has ended.

What it does not do: a pin that fails is logged and tried again at the next turn; the stream runs on. The tables then
keep what the previous pin keeps, which is more.
"""

from __future__ import annotations

import logging
import threading
from functools import cached_property
from typing import TYPE_CHECKING

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import SluiceError
from sluice.ledger.connection import Ledger
from sluice.maintenance.position_pins import pin_positions, pinned_tables
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_log = logging.getLogger(__name__)

PIN_SECONDS = 300.0
"""How often the positions are pinned. A pin is a commit on a table that others write: 40 to 110 ms, and twelve metadata
files an hour for each reader. What a reader holds back too long is five minutes of snapshots."""

_LAST_PIN_SECONDS = 10.0
"""How long the end of a run waits for a pin that is under way; one that hangs is left behind."""


class Pinning:
    """Pins the positions of one stream while it runs. A context manager.

    Parameters
    ----------
    pin_seconds: how often.
    """

    def __init__(
        self, declaration: StreamDeclaration, settings: Settings, ledger: Ledger, *, pin_seconds: float = PIN_SECONDS
    ) -> None:
        self._declaration = declaration
        self._settings = settings
        self._ledger = ledger
        self._pin_seconds = pin_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_pinning, name="pins", daemon=True)

    def __enter__(self) -> Pinning:
        if pinned_tables(self._declaration):
            self._pin()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_PIN_SECONDS)
        if kind is None and pinned_tables(self._declaration):
            self._pin()  # the stream may be away for long; a position that is pinned is continued from

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._settings)

    def _keep_pinning(self) -> None:
        while not self._ended.wait(self._pin_seconds):
            self._pin()

    def _pin(self) -> None:
        try:
            pins = pin_positions(
                self._catalog, self._ledger, self._declaration, object_store=self._settings.object_store
            )
        except SluiceError as error:
            _log.warning("the positions of %s could not be pinned: %s", self._declaration.stream, error)
        except Exception:  # noqa: BLE001  # a pin protects from expiry; a defect in it must not end a stream that works
            _log.exception("the positions of %s could not be pinned", self._declaration.stream)
        else:
            for pin in pins:
                _log.info("pinned snapshot %d as %s", pin.snapshot_id, pin.tag)
