"""The public names, the error tree and what importing costs."""

import subprocess
import sys

import pytest

import scalable
from scalable import errors, providers
from scalable.model import Diagnostic


def test_public_names_are_pinned():
    assert sorted(scalable.__all__) == [
        "AdaptiveScaler",
        "CallFailed",
        "ClusterError",
        "CommandResult",
        "File",
        "KeyOptions",
        "Manifest",
        "ManifestError",
        "Plan",
        "PlanError",
        "PoolCluster",
        "ProviderError",
        "RunError",
        "ScalableClient",
        "ScalableError",
        "ScalableSession",
        "SlurmCluster",
        "Storage",
        "Sweep",
        "cached",
        "checkpoint",
        "command",
        "connect",
        "current_storage",
        "list_clusters",
    ]


#: Names of `scalable.providers` that `scalable` has too, without listing them.
OF_PROVIDERS = (
    "ClusterHandle",
    "CostEstimate",
    "DeploymentProvider",
    "DeploymentSpec",
    "LocalProvider",
    "ResourceRequest",
    "ScaleDecision",
    "ScalePlan",
    "SlurmProvider",
    "ValidationReport",
    "get_provider",
    "register_provider",
)


def test_names_for_authors_of_providers_are_pinned():
    assert dir(providers) == [
        "AWSBatchProvider",
        "AWSProvider",
        "ClusterHandle",
        "ClusterLifecycle",
        "ClusterServices",
        "CostEstimate",
        "DeploymentProvider",
        "DeploymentSpec",
        "Diagnostic",
        "GCPProvider",
        "KubernetesProvider",
        "LocalProvider",
        "OptionsModel",
        "ProgramState",
        "RemotePlace",
        "ResourceRequest",
        "ScaleDecision",
        "ScalePlan",
        "SlurmProvider",
        "Traits",
        "ValidationReport",
        "get_provider",
        "register_provider",
    ]
    for name in dir(providers):
        assert getattr(providers, name).__name__ in (name, "AWSProvider")


@pytest.mark.parametrize("name", OF_PROVIDERS)
def test_names_of_providers_are_importable_from_scalable_too(name):
    assert getattr(scalable, name) is getattr(providers, name)
    assert name not in dir(scalable)


@pytest.mark.parametrize("name", scalable.__all__)
def test_every_public_name_resolves(name):
    assert getattr(scalable, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_like_it"):
        scalable.nothing_like_it  # noqa: B018


def test_importing_the_package_or_a_session_loads_no_engine():
    code = (
        "import sys, scalable, scalable.session, scalable.providers.local;"
        "from scalable.providers import DeploymentSpec, get_provider;"
        "print([m for m in ('dask', 'distributed', 'bokeh', 'pandas') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip() == "[]"


def test_exit_codes_follow_the_tree():
    codes = {
        cls.__name__: cls.exit_code
        for cls in (
            errors.ScalableError,
            errors.ManifestError,
            errors.PlanError,
            errors.ProviderError,
            errors.UnknownProviderError,
            errors.ClusterError,
            errors.RunError,
        )
    }
    assert codes == {
        "ScalableError": 1,
        "ManifestError": 2,
        "PlanError": 3,
        "ProviderError": 4,
        "UnknownProviderError": 4,
        "ClusterError": 5,
        "RunError": 6,
    }


def test_a_manifest_error_shows_every_diagnostic_with_its_place():
    fault = Diagnostic(
        "E_BAD_OPTION", ("tasks", "run", "after", 0), "no such task", "write one", file="m.yaml",
        line=3, column=9,
    )  # fmt: skip
    error = errors.ManifestError("2 errors", diagnostics=[fault, fault])
    assert (
        str(error).count("m.yaml:3:9: error E_BAD_OPTION: no such task [tasks.run.after[0]]") == 2
    )
    assert "hint: write one" in str(error)
