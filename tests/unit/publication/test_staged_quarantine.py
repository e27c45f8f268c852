"""Records that could not be decoded are staged with the way in which they become visible, as every batch is."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame
from tests.fixtures.publication import CatalogPlace, Workbench, offsets, open_catalog_at

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.ledger.batches import PublicationKey
from sluice.publication.staged_batch import PlannedBatch, StagedOutput
from sluice_spark.delivery.batch_staging import BatchStaging
from sluice_spark.query.observed_rows import RejectedRecords


class NoRecords:
    """A batch whose records could all be decoded, as far as the staging asks for it."""

    @property
    def write(self) -> NoRecords:
        return self

    def format(self, _name: str) -> NoRecords:
        return self

    def mode(self, _name: str) -> NoRecords:
        return self

    def save(self) -> None:
        """Nothing is computed."""

    def unpersist(self) -> None:
        """Nothing was kept."""

    def of_computed_batch(self) -> tuple[int, DataFrame | None]:
        return 0, None


def test_an_empty_quarantine_is_staged_with_its_mode(tmp_path: Path) -> None:
    place = CatalogPlace(sql_url=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog = open_catalog_at(place)
    output = StagedOutput(stream="orders", output=QUARANTINE_OUTPUT, target="quarantine.orders")
    bench = Workbench(open_catalog=lambda: catalog, catalog=catalog, output=output, place=place)
    bench.declare()
    bench.begin()
    records = NoRecords()
    staging = BatchStaging(
        catalog=catalog,
        targets=bench.publisher().targets,
        carried=frozenset(),
        rejected=cast("RejectedRecords", records),
        is_computed_once=False,
    )
    batch = PlannedBatch(
        key=PublicationKey(stream="orders", generation=1, batch=0),
        run_id="r",
        token=1,
        start_offsets=offsets(0),
        end_offsets=offsets(10),
    )

    counted = staging.stage(cast("DataFrame", records), batch, [QUARANTINE_OUTPUT])

    (staged,) = bench.staged()
    assert counted.rows == {QUARANTINE_OUTPUT: 0}
    assert (staged.summary.mode, staged.summary.rows) == (bench.mode(), 0)
    assert bench.publish(staged).published == (staged,)
