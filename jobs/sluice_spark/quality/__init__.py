"""Quality checks of a table with Great Expectations."""
