"""Former names of programs, for jobs that were queued with them; nothing else."""
