"""The DAG of the on-call: show, start, stop and restart a stream by a form."""

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.stream_control import stream_control_dag

stream_control = stream_control_dag(load_declarations(pipelines_folder()))
