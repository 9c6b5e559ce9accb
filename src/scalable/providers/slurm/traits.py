"""Traits of the slurm provider."""

from scalable.model import Starting, Traits

TRAITS = Traits(
    shares_files=True,
    # Time in the queue is not billed.
    starting=Starting(startup_s=60.0, billed_s=30.0, billed_least_s=0.0),
    services_option=("scheduler", "job"),
    job_variable="SLURM_JOB_ID",
    # A job's comment contains the tag twice, and a directory. Slurm accepts 1,024 characters.
    longest_tag=100,
    programs=("sbatch", "squeue", "scancel", "scontrol"),
)
