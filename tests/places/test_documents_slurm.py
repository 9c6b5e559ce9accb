"""Pages whose commands need Slurm run on a real one on this machine."""

import pytest

from pages import runs_as_it_stands


@pytest.mark.timeout(480)
def test_the_page_of_slurm_runs_as_it_stands(on_slurm, tmp_path):
    # Pods of the Kubernetes bed on this machine need the usual port.
    any_port = ("    # interface: ib0", "    scheduler_port: 0")
    environment = on_slurm.environment()
    runs_as_it_stands("docs/tutorial-slurm.md", tmp_path, environment, 150, any_port)
