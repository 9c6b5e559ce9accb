"""Client side: routing of tasks by tag, task graphs, and connections to running clusters."""
