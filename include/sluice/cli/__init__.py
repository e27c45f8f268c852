"""The `sluice` command.

| module | purpose |
|---|---|
| `app` | the root: its families of commands, exit codes, error messages |
| `families` | the list of the families; imports the module of a family when one of its commands is called |
| `cli_context` | the settings, declarations, ledger and launchers that commands work with |
| `command_options` | arguments and options that several commands share |
| `terminal` | what several commands print alike |
| `<family>_verbs`, `validate`, `preview`, `demo` | one module for each family, or for a command without a family |
| `show_streams`, `control_streams`, `follow_log` | the verbs of `stream_verbs` |
| `stream_rendering` | streams, runs and batches as tables and as JSON |
| `maintenance_verbs`, `table_outcome` | the maintenance verbs of `table_verbs`; what a declaration changes on a table |
| `spark_plans` | the plans of `sluice validate --plan` |
"""
