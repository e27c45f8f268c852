"""What must be on the machine before Sluice can run, and how it is installed.

| module | purpose |
|---|---|
| `installation` | all of it in order, and the record of where it lies |
| `python_environment` | uv, and `.venv` from `uv.lock` |
| `java_runtime` | find a Java; keep the archive of classes that makes Spark start faster |
| `jars` | fetch the jars that `ivy.lock` lists; write it from `ivy.xml` |
| `command_runner` | run programs that never outlive the bootstrap; print the progress |

The system's own Python runs these modules before any package is installed, so they import the standard library,
`sluice.errors` and each other only (kept by a test in `tests/architecture`).
"""
