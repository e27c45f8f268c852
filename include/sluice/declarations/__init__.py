"""What was asked: frozen models of streams and tables, and how they are loaded and checked."""
