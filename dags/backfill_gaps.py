"""The DAG that compares the newest intervals of tables with what their sources give."""

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.backfills import backfill_gaps_dag

backfill_gaps = backfill_gaps_dag(load_declarations(pipelines_folder()))
