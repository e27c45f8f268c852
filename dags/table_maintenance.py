"""The DAG that keeps every table in order, on schedule."""

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.table_jobs import table_maintenance_dag

table_maintenance = table_maintenance_dag(load_declarations(pipelines_folder()))
