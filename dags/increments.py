"""A DAG for every incremental stream: by the clock, by new rows in tables, or by both."""

from airflow.sdk import get_parsing_context

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.broken_declarations import build_stream_dags
from sluice_airflow.dag_builders.increments import incremental_stream_dag

declarations = load_declarations(pipelines_folder(), only=get_parsing_context().dag_id)
incremental = [stream for stream in declarations.streams.values() if stream.declaration.mode == "incremental"]
globals().update(build_stream_dags(incremental, incremental_stream_dag))
