"""Compares what a refresh has computed with what readers of the table see since its commit.

The commit exchanges entries of files, and whether they are there and fit is checked before it. This reads the rows of
the table and of the shadow, and compares their sums, as backfills and compactions do, when the stream may run again.
Where that is more than the table's `content_check_bytes`, the rows are counted.
"""

from __future__ import annotations

import logging

from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from sluice.errors import VerificationError
from sluice.ledger.refreshes import RefreshObservation
from sluice.publication.publish_batches import live_files
from sluice.refresh.shadow_stream import Exchanged
from sluice.tables.declared_tables import load_table, require_table
from sluice_spark.session.columns import quoted_table
from sluice_spark.session.row_content import fingerprint

_log = logging.getLogger(__name__)


def require_same_content(
    spark: SparkSession, catalog: Catalog, refresh: RefreshObservation, exchanged: Exchanged, *, most_bytes: int
) -> None:
    """Compare the rows of the declared output.

    Parameters
    ----------
    most_bytes: so much is read at most to compare the rows; beyond it they are counted.

    Raises
    ------
    VerificationError: when they differ; the shadow stays, and the command fails until it is taken back.
    LakehouseError: when a table cannot be loaded.
    """
    shadow, target = load_table(catalog, exchanged.built.target), require_table(catalog, exchanged.output.target)
    if shadow is None or refresh.snapshot_id is None or target.snapshot_by_id(refresh.snapshot_id) is None:
        _log.warning("%s is not compared any more: the shadow is dropped, or the snapshot has expired", refresh.shadow)
        return
    size = sum(file.file_size_in_bytes for file in live_files(shadow))
    computed = spark.table(quoted_table(catalog.name, exchanged.built.target))
    reader = spark.read.option("versionAsOf", str(refresh.snapshot_id))
    seen = reader.table(quoted_table(catalog.name, exchanged.output.target))
    is_hashed = 2 * size <= most_bytes
    expected, found = _content(computed, is_hashed=is_hashed), _content(seen, is_hashed=is_hashed)
    if expected != found:
        raise VerificationError(
            f"Since refresh {refresh.number}, readers of {exchanged.output.target} see {found}, and it has computed "
            f"{expected}.",
            next_step=f"Bring the earlier content back: `sluice stream refresh {refresh.stream} --take-back`.",
        )
    _log.info("readers of %s see what was computed: %s", exchanged.output.target, found)


def _content(rows: DataFrame, *, is_hashed: bool) -> str:
    if not is_hashed:
        return f"{rows.count():,} rows"
    content = fingerprint(rows)
    return f"{content.rows:,} rows with the sums {content.sums[0]} and {content.sums[1]}"
