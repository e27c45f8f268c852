"""A DAG for every continuous stream."""

from airflow.sdk import get_parsing_context

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.streams import continuous_stream_dags

globals().update(continuous_stream_dags(load_declarations(pipelines_folder(), only=get_parsing_context().dag_id)))
