"""Backfills: an interval of the past is computed again as one batch and replaced, beside the live stream."""
