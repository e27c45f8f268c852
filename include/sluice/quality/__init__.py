"""Quality checks: the pages that show their results."""
