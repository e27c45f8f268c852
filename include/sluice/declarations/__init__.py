"""Declarations of streams and tables: frozen models, loading, and checks that name file and line.

| module | purpose |
|---|---|
| `load_declarations`, `loaded_declarations` | read a folder; its valid declarations and its problems |
| `declaration_files`, `error_messages` | YAML with line numbers; what pydantic found, as sentences |
| `stream_declaration`, `table_declaration` | the two kinds of files |
| `transformation_declaration`, `maintenance_declaration` | the work of a stream, the maintenance of a table |
| `input_declaration`, `source_declarations`, `value_declaration` | where rows come from, and what they hold |
| `output_declaration`, `iceberg_output` | where rows go |
| `trigger_declaration`, `engine_declaration`, `supervision_declaration` | when, with what, and what to do on failure |
| `checks` | what one model alone cannot check: names across files, combinations, connections |
| `schemas` | schema files beside a declaration |
| `plan_report`, `preview_report` | what Spark makes of a declaration: `sluice validate --plan`, `sluice preview` |
"""
