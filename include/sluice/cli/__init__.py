"""The `sluice` command: one file for each family of commands, put together in `app`."""
