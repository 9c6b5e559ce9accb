"""What the documents show is run: the pages whose examples compute for long."""

import pytest

from pages import runs_as_it_stands


@pytest.mark.parametrize("page", ["docs/resuming.md"])
def test_the_page_runs_as_it_stands(page, tmp_path):
    runs_as_it_stands(page, tmp_path)
