"""What must be on the machine before anything of Sluice can run, and how it gets there.

| module | purpose |
|---|---|
| `installation` | all of it in order, and the record of where it is |
| `python_environment` | uv, and `.venv` from `uv.lock` |
| `java_runtime`, `java_installation` | find a Java; install one through the system's package manager |
| `jar_lock`, `jars`, `lock_jars` | `ivy.lock`; fetch what it lists; write it from `ivy.xml` |
| `class_archive`, `record_class_archive` | the archive that makes Spark start quicker |
| `command_runner`, `progress` | run programs that never outlive us; tell what is done |

The system's own Python runs these modules before a single package is installed, so they import the standard library,
`sluice.errors` and each other only (kept by a test in `tests/architecture`). `record_class_archive` is the exception:
it runs in `.venv`.
"""
