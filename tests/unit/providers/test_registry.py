"""Which providers there are."""

import importlib.metadata

import pytest

from scalable import ProviderError
from scalable.providers import get_provider, register_provider, registry
from scalable.providers.registry import option_models, provider_names, unregister_provider
from unit.programs import printed_by


class Mine:
    name = "mine"


@pytest.fixture
def mine():
    """A provider registered at run time."""
    register_provider("Mine", Mine)
    yield Mine
    unregister_provider("mine")


@pytest.mark.parametrize("name", ["mine", "Local", "SLURM"])
def test_a_duplicate_is_a_value_error(mine, name):
    with pytest.raises(ValueError, match=f"a provider '{name.lower()}' already exists"):
        register_provider(name, Mine)


def test_an_unknown_one_is_a_key_error_that_lists_what_exists():
    with pytest.raises(KeyError) as caught:
        get_provider("azure")
    assert str(caught.value).startswith(
        "unknown provider 'azure' (known providers: aws, gcp, kubernetes"
    )


def entry_point(value):
    return importlib.metadata.EntryPoint("Theirs", value, registry.ENTRY_POINT_GROUP)


def test_an_installed_one_is_found_and_loaded_on_first_use(monkeypatch):
    points = [entry_point("collections:OrderedDict")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert "theirs" in provider_names()
    assert get_provider("theirs") == {}
    with pytest.raises(ValueError, match="already"):
        register_provider("theirs", Mine)


def test_an_installed_one_that_cannot_be_loaded_says_so_and_harms_no_other(monkeypatch, caplog):
    points = [entry_point("no_such_module:Nothing")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with pytest.raises(
        ProviderError, match=r"'theirs' \(no_such_module:Nothing\) cannot be loaded"
    ):
        get_provider("theirs")
    models = option_models()
    assert models["theirs"] is None
    assert models["local"] is not None
    assert "no_such_module" in caplog.text


def test_the_classes_of_built_in_providers_are_in_the_package_and_loaded_when_used():
    code = (
        "import sys, scalable.providers as p; assert 'LocalProvider' in dir(p);"
        "from scalable.providers import LocalProvider, SlurmProvider, KubernetesProvider;"
        "from scalable.providers import AWSBatchProvider, GCPProvider;"
        "assert {type(p.AWSBatchProvider()).name, GCPProvider.name} == {'aws', 'gcp'};"
        "assert 'distributed' not in sys.modules"
    )
    printed_by(code)
    with pytest.raises(ImportError, match="MoonProvider"):
        from scalable.providers import MoonProvider  # noqa: F401
