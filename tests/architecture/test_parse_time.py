"""A DAG file is parsed every 30 seconds and before every task: nothing slow or reaching outside is imported by that."""

from __future__ import annotations

from tests.architecture.source_modules import Import, Moment, SourceModule, is_within, source_modules

SLOW = (
    "airflow.hooks",
    "boto3",
    "confluent_kafka",
    "duckdb",
    "great_expectations",
    "pandas",
    "psycopg",
    "psycopg2",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "sqlalchemy",
)


def reached_at_parse_time() -> dict[str, SourceModule]:
    """Every module of ours that is imported when the files of `dags/` and `plugins/` are."""
    by_name = {module.name: module for module in source_modules()}
    reached: dict[str, SourceModule] = {}
    open_modules = [module for module in source_modules() if module.room in {"dags", "plugins"}]
    while open_modules:
        module = open_modules.pop()
        if module.name in reached:
            continue
        reached[module.name] = module
        for found in import_time_imports(module):
            parts = found.module.split(".")
            packages = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
            open_modules.extend(by_name[package] for package in packages if package in by_name)
    return reached


def import_time_imports(module: SourceModule) -> list[Import]:
    """What is imported when the module is."""
    return [found for found in module.imports() if found.moment is Moment.IMPORT]


def test_dag_files_import_nothing_slow() -> None:
    reached = reached_at_parse_time()

    wrong = [
        f"{module.place}:{found.line} imports {found.module} when it is imported"
        for module in reached.values()
        for found in import_time_imports(module)
        if is_within(found.module, SLOW)
    ]

    assert wrong == []


def test_dag_files_are_thin() -> None:
    wrong = [
        f"{module.place} has {length} lines"
        for module in source_modules()
        if module.room == "dags" and (length := len(module.path.read_text().splitlines())) > 80
    ]

    assert wrong == []
