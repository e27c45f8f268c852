"""Refreshes inside Spark: the shadow is built increment by increment, and then swapped."""
