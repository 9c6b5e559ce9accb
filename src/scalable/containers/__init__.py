"""containers room."""
