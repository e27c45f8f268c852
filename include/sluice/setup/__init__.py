"""What must be on the machine before Sluice can run, and how it is installed.

| module | purpose |
|---|---|
| `installation` | all of it in order, and the record of where it lies |
| `python_environment` | uv, and `.venv` from `uv.lock` |
| `java_runtime`, `java_installation` | find a Java; install one with the system's package manager |
| `jar_lock`, `jars`, `lock_jars` | `ivy.lock`; fetch the jars that it lists; write it from `ivy.xml` |
| `class_archive` | the archive that makes Spark start faster |
| `command_runner`, `setup_progress` | run programs that never outlive the bootstrap; print the progress |

The system's own Python runs these modules before any package is installed, so they import the standard library,
`sluice.errors` and each other only (kept by a test in `tests/architecture`).
"""
