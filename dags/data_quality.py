"""The DAG that checks every table against its declared expectations."""

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.table_jobs import data_quality_dag

data_quality = data_quality_dag(load_declarations(pipelines_folder()))
