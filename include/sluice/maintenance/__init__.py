"""Maintenance of tables: who reads them, which snapshots stay pinned, and which steps are due."""
