"""A DAG for the backfills of every stream that declares them, beside the stream's own DAG."""

from airflow.sdk import get_parsing_context

from sluice.declarations.load_declarations import load_declarations
from sluice.settings import pipelines_folder
from sluice_airflow.dag_builders.backfills import BACKFILL_SUFFIX, backfill_dag
from sluice_airflow.dag_builders.broken_declarations import build_stream_dags

parsed = get_parsing_context().dag_id
stream_name = parsed.removesuffix(BACKFILL_SUFFIX) if parsed is not None else None
declarations = load_declarations(pipelines_folder(), only=stream_name)
backfilled = [stream for stream in declarations.streams.values() if stream.declaration.backfill is not None]
globals().update(build_stream_dags(backfilled, backfill_dag, suffix="backfill"))
