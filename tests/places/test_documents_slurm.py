"""Pages whose commands need Slurm run on a real one on this machine."""

import pytest

from pages import runs_as_it_stands


@pytest.mark.timeout(480)
def test_the_page_of_slurm_runs_as_it_stands(on_slurm, tmp_path):
    runs_as_it_stands("docs/tutorial-slurm.md", tmp_path, on_slurm.environment(), patience=150)
