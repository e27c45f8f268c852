"""Iceberg tables: the catalog, schemas as declared, and what the metadata of a table says."""
