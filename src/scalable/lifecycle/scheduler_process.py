"""Old name of ``scalable.programs.scheduler``, kept for jobs that were queued under it."""

from runpy import run_module

if __name__ == "__main__":
    run_module("scalable.programs.scheduler", run_name="__main__", alter_sys=True)
