"""Refreshes: a table is rebuilt from its sources beside the live stream, and its content replaced in one commit."""
