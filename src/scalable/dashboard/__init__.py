"""dashboard room."""
