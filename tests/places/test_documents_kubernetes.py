"""Pages whose commands need a Kubernetes cluster run on the test bed."""

import pytest

from pages import runs_as_it_stands


@pytest.mark.parametrize(
    "page", ["docs/tutorial-kubernetes.md", "docs/tutorial-kubernetes-detached.md"]
)
def test_the_page_of_kubernetes_runs_as_it_stands(page, tmp_path, kubernetes_bed):
    runs_as_it_stands(page, tmp_path, {"KUBECONFIG": str(kubernetes_bed.kubeconfig("admin"))})
