"""The `sluice` command.

| module | purpose |
|---|---|
| `app` | the root: its families of commands, exit codes, error messages |
| `families` | the list of the families; imports the module of a family when one of its commands is called |
| `cli_context` | the settings, declarations, ledger and launchers that commands work with |
| `operation` | the plan of what a person does, and the question for consent |
| `terminal` | options that several commands share, and what they print alike |
| `<family>_verbs`, `validate`, `preview`, `demo` | one module for each family, or for a command without a family |
| `show_streams` | the verbs of `stream_verbs` that only look |
| `stream_rendering` | streams, runs and batches as tables and as JSON |
| `maintenance_verbs` | the maintenance verbs of `table_verbs` |
"""
