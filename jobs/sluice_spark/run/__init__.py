"""A run of a stream: admitted, started, watched and stopped."""
