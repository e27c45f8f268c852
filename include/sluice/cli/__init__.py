"""The `sluice` command.

| module | purpose |
|---|---|
| `app` | the root: its families of commands, whose modules are imported when called; exit codes, error messages |
| `cli_context` | the settings, declarations, ledger, launchers and queue that commands work with |
| `terminal` | options that several commands share, what they print alike, and the question for consent to a plan |
| `<family>_verbs`, `validate`, `preview`, `demo` | one module for each family, or for a command without a family |
| `show_streams`, `position_verbs` | the verbs of `sluice stream` that only look, and those that write a position |
| `stream_rendering` | streams, runs and batches as tables and as JSON |
| `maintenance_verbs` | the maintenance verbs of `sluice table` |
"""
