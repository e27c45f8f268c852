"""A DAG for every continuous stream."""

from airflow.sdk import get_parsing_context

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.broken_declarations import build_stream_dags
from sluice_airflow.dag_builders.streams import continuous_stream_dag

declarations = load_declarations(pipelines_folder(), only=get_parsing_context().dag_id)
continuous = [stream for stream in declarations.streams.values() if stream.declaration.mode == "continuous"]
globals().update(build_stream_dags(continuous, continuous_stream_dag))
