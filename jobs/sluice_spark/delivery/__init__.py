"""Delivery of batches: staged, direct, to sinks, or record by record."""
