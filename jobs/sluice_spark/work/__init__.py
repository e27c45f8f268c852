"""The application that does the bounded work of its pool: it claims items and runs each in a session of its own."""
