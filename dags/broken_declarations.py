"""A DAG for every broken declaration, tagged `broken`, that shows file, line and message."""

from airflow.sdk import get_parsing_context

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.broken_declarations import broken_declaration_dags

wanted = get_parsing_context().dag_id
declarations = load_declarations(pipelines_folder())
broken = broken_declaration_dags(declarations.broken, folder=declarations.folder)
globals().update({dag.dag_id: dag for dag in broken if wanted in (None, dag.dag_id)})
