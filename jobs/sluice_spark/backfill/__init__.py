"""Backfills inside Spark: the rows of an interval, computed as a batch, staged and published."""
