"""Old name of ``scalable.programs.manager``, kept for jobs that were queued under it."""

from runpy import run_module

if __name__ == "__main__":
    run_module("scalable.programs.manager", run_name="__main__", alter_sys=True)
