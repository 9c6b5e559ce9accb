"""The program of a cloud's machine watches its workers, and is small itself."""

import pytest

from scalable.providers.registry import get_provider, provider_names
from unit.programs import printed_by


@pytest.mark.parametrize("name", [n for n in provider_names() if hasattr(get_provider(n), "cloud")])
def test_dask_is_not_imported_by_the_process_that_watches_the_workers(name):
    code = (
        "import sys, scalable.clusters.programs.machine;"
        "from scalable.providers.registry import get_provider;"
        f"get_provider({name!r}).machine_side();"
        "assert not {'dask', 'distributed', 'numpy'} & sys.modules.keys()"
    )
    printed_by(code)
