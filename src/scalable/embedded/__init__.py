"""A cluster whose scheduler and worker manager run in the user's process."""
