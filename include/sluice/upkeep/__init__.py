"""Upkeep put together: what ledger and lakehouse say goes to a decision, for jobs, CLI and DAGs alike."""
