"""How Sluice acts inside Spark: sessions, sources, sinks, listeners."""
