"""`sluice stream`: all verbs of the family, in the order of its help."""

from __future__ import annotations

import typer

from sluice.cli import continue_stream, control_streams, event_verbs, follow_log, gap_verbs, refresh_verbs, show_streams

app = typer.Typer(help="Streams as declared and as they run.", no_args_is_help=True, add_completion=False)

app.command("list")(show_streams.list_streams)
app.command()(show_streams.status)
app.command()(show_streams.show)
app.command()(control_streams.start)
app.command()(control_streams.stop)
app.command()(control_streams.restart)
app.command()(control_streams.reset)
app.command()(refresh_verbs.refresh)
app.command("continue")(continue_stream.continue_past_gap)
app.command()(follow_log.logs)
app.command()(gap_verbs.gaps)
app.command("events")(event_verbs.stream_events)
app.command("reset-breaker")(control_streams.reset_breaker)
