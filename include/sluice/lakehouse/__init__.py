"""The side of the lakehouse that needs no Spark: catalog, tables, snapshots and their pins, checkpoint files."""
