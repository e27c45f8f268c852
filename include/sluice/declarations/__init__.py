"""Declarations of streams and tables: frozen models, loading, and checks that name file and line.

| module | purpose |
|---|---|
| `load_declarations`, `loaded_declarations` | read a folder; its valid declarations and its problems |
| `declaration_files`, `error_messages` | YAML with line numbers; what pydantic found, as sentences |
| `stream_declaration`, `table_declaration` | the two kinds of files |
| `transformation_declaration` | the work of a stream, and how the past is processed again |
| `maintenance_declaration`, `maintenance_policy` | the maintenance of a table, and what tables have in common |
| `input_declaration`, `source_declarations`, `value_declaration` | where rows come from, and what they hold |
| `output_declaration`, `rule_declaration` | where rows go, and what must be true of them |
| `run_declaration` | with what a stream runs, and what to do on failure |
| `checks` | what one model alone cannot check: names across files, combinations, connections |
| `schema_files`, `protobuf_schemas` | schema files beside a declaration |
| `spark_reports` | what Spark makes of a declaration: `sluice validate --plan`, `sluice preview` |
"""
