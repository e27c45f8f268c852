"""Sources of streams: their positions and heads, what is unread, what is skipped, and their clients."""
