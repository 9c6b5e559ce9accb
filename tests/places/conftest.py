"""Places on this machine: test beds of Kubernetes and of clouds, and a real Slurm."""

import importlib.util
import os

import pytest
from cloud_places import cloud, cloud_place, cloud_work  # noqa: F401 - fixtures

from detached import place  # noqa: F401 - a fixture
from on_slurm import (  # noqa: F401 - fixtures
    accounted_slurm,
    on_accounting,
    on_slurm,
    own_slurm,
    slurm,
)


@pytest.fixture(scope="session")
def kubernetes_bed():
    """Run a Kubernetes cluster on this machine; see the package `kubernetes_bed`."""
    reason = missing_for_kubernetes()
    if os.environ.get("SCALABLE_REQUIRE_KUBERNETES") and reason:
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    from kubernetes_bed import KubernetesBed

    with KubernetesBed() as bed:
        yield bed


def missing_for_kubernetes():
    """Return why the Kubernetes test bed cannot run here, "" if it can."""
    for name in ("aiohttp", "kubernetes_asyncio", "kubernetes_validate"):
        if importlib.util.find_spec(name) is None:
            return f"the Kubernetes test bed needs the Python package {name}"
    from kubernetes_bed import unavailable

    return unavailable()


# One for each file: what a file leaves running is not found by the next.
@pytest.fixture(scope="module")
def aws_bed():
    """Run an AWS account on this machine; see the package `aws_bed`."""
    reason = missing_for_aws()
    if os.environ.get("SCALABLE_REQUIRE_AWS") and reason:
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    from aws_bed import AwsBed

    with AwsBed() as bed:
        yield bed


def missing_for_aws():
    """Return why the AWS test bed cannot run here, "" if it can."""
    for name in ("aiobotocore", "aiohttp", "boto3", "flask", "flask_cors", "moto"):
        if importlib.util.find_spec(name) is None:
            return f"the AWS test bed needs the Python package {name}"
    from kubernetes_bed.container import unavailable

    return unavailable()


@pytest.fixture(scope="session")
def gcp_bed():
    """Run a Google Cloud on this machine; see the package `gcp_bed`."""
    if reason := missing_for_gcp():
        if os.environ.get("SCALABLE_REQUIRE_GCP"):
            pytest.fail(reason)
        pytest.skip(reason)
    from gcp_bed import GcpBed

    with GcpBed() as bed:
        yield bed


def missing_for_gcp():
    """Return why the Google Cloud test bed cannot run here, "" if it can."""
    for name in ("aiohttp", "googleapiclient", "google.cloud.compute", "google.auth"):
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"the Google Cloud test bed needs the Python package of {name}"
    from gcp_bed import unavailable

    return unavailable()
