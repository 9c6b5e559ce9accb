"""Entry points of the processes of a detached cluster: its scheduler and its managers."""
