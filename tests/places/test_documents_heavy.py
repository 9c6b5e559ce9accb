"""What the documents show is run: the pages whose examples compute for long."""

import pytest

from pages import runs_as_it_stands

PAGES = ("calls", "clusters", "cookbook", "failing", "migrating", "planning", "resuming")


# A page starts a dozen processes one after the other, which takes minutes on a busy machine.
@pytest.mark.timeout(480)
@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs_as_it_stands(page, tmp_path):
    runs_as_it_stands(f"docs/{page}.md", tmp_path)
