"""Checkpoints of streams: files, layout, health, and which changes of a declaration they can follow."""
