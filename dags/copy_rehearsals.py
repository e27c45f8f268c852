"""The DAG that puts the copies of states back on trial."""

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.platform_dags import copy_rehearsals_dag

copy_rehearsals = copy_rehearsals_dag(load_declarations(pipelines_folder()))
