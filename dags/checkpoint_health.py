"""The DAG that checks every checkpoint, on schedule."""

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.platform_dags import checkpoint_health_dag

checkpoint_health = checkpoint_health_dag(load_declarations(pipelines_folder()))
