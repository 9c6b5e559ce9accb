"""The library of Kubernetes is imported in part, and is whole for whoever asks it for more."""

import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

from scalable.providers.kubernetes import api
from unit.programs import printed_by

pytestmark = pytest.mark.skipif(
    find_spec("kubernetes_asyncio") is None, reason="the library is not installed"
)


def test_the_client_is_loaded_without_the_models_and_the_rest_on_demand():
    code = """import sys
from scalable.providers.kubernetes import api
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
    assert printed_by(code).split() == [
        "False", *["True"] * 3, "Watch", "kubernetes_asyncio", "False", "ApiException", "True",
        "ConfigException",
    ]  # fmt: skip


def test_a_library_that_is_imported_already_is_used_as_it_is(monkeypatch):
    names = ("kubernetes_asyncio", "kubernetes_asyncio.client", "kubernetes_asyncio.config")
    whole = [ModuleType(name) for name in names]
    for name, module in zip(names, whole, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    assert api.load() == tuple(whole[1:])
