"""Pages whose commands need AWS and Google Cloud run on the test beds."""

import pytest

from pages import runs_as_it_stands


@pytest.mark.parametrize("page", ["docs/cloud.md", "docs/tutorial-cloud.md"])
def test_the_page_of_clouds_runs_as_it_stands(page, tmp_path, aws_bed, gcp_bed):
    aws_bed.settings(delay=0.05)
    runs_as_it_stands(page, tmp_path, aws_bed.environment() | gcp_bed.environment())
