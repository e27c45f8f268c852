"""Rows of a person, removed from everything that is kept for a table, with a search that proves it."""
