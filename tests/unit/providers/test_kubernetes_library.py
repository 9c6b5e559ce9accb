"""The library of Kubernetes is imported in part, and is whole for whoever asks it for more."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("kubernetes_asyncio") is None, reason="the library is not installed"
)


def python(code):
    """Run code in a fresh process and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nfrom scalable.providers.kubernetes import api\n{code}"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_client_is_loaded_without_the_models_and_the_rest_on_demand():
    code = """
client, config = api.load()
own = client.ApiClient
print(any(name.startswith("kubernetes_asyncio.client.models.") for name in sys.modules))
from kubernetes_asyncio.client import CoreV1Api, V1Pod
import kubernetes_asyncio
print(client.ApiClient is own, client.models.V1Pod is V1Pod, issubclass(CoreV1Api, object))
print(kubernetes_asyncio.watch.Watch.__name__, kubernetes_asyncio.__project__)
print(hasattr(client, "Nonsense"), client.ApiException.__name__)
print(api.load() == (client, config), config.ConfigException.__name__)
"""
    assert python(code) == [
        "False", *["True"] * 3, "Watch", "kubernetes_asyncio", "False", "ApiException", "True",
        "ConfigException",
    ]  # fmt: skip


def test_a_library_that_is_imported_already_is_used_as_it_is():
    code = """
import kubernetes_asyncio
client, config = api.load()
print(client is kubernetes_asyncio.client, config is kubernetes_asyncio.config)
"""
    assert python(code) == ["True", "True"]
