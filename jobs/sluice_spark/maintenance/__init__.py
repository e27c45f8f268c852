"""Maintenance of a table with Spark's procedures."""
