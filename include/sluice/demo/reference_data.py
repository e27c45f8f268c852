"""Writes the reference tables of the demo, airlines and planes, with pyiceberg: a table of this size needs no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.demo.flights_data import read_airlines, read_planes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog


def write_reference_data(catalog: Catalog) -> list[str]:
    """Make the reference tables hold the package's airlines and planes. A table that does already is left alone.

    Parameters
    ----------
    catalog: holds `reference.airlines` and `reference.planes`.

    Returns
    -------
    The tables that were written.
    """
    contents = {"reference.airlines": read_airlines(), "reference.planes": read_planes()}
    return [table for table, content in contents.items() if _write(catalog, table, content)]


def _write(catalog: Catalog, name: str, content: pa.Table) -> bool:
    table = catalog.load_table(name)
    schema = table.schema().as_arrow()
    wanted = content.select(schema.names).cast(schema)
    there = table.scan().to_arrow().cast(schema)
    if _sorted(there).equals(_sorted(wanted)):
        return False
    if there.num_rows == 0:
        table.append(wanted)
    else:
        table.overwrite(wanted)
    return True


def _sorted(content: pa.Table) -> pa.Table:
    return content.sort_by([(content.schema.names[0], "ascending")]).combine_chunks()
