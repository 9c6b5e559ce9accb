"""top room."""
