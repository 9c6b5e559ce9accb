"""``project.default_storage``: what it may be, and that a secret in it is not shown."""

import pytest

from scalable.model.cache_settings import CacheSettings

REST = "targets: {t: {provider: local}}\ncomponents: {a: }\n"


@pytest.mark.parametrize("suffix", [".yaml", ".toml"])
def test_credentials_are_refused_with_their_place_and_not_shown(diagnose, suffix):
    text = {
        ".yaml": f"version: 1\nproject:\n  name: p\n  default_storage: s3://KEY:hidden@b\n{REST}",
        ".toml": "version = 1\n[project]\nname = 'p'\n  default_storage = 's3://KEY:hidden@b'\n"
        "[targets.t]\nprovider = 'local'\n[components.a]\n",
    }[suffix]
    (found,) = diagnose(text, suffix=suffix, in_schema=False)
    assert (found.code, found.dotted_path) == ("E_BAD_OPTION", "project.default_storage")
    assert found.line == 4
    assert found.column > 1
    shown = found.render()
    assert "default_storage must not contain a user or a password" in shown
    assert "credentials come from the environment" in shown
    assert "hidden" not in shown


def test_an_unknown_scheme_is_a_fault_that_names_the_known_ones(diagnose):
    text = f"version: 1\nproject: {{name: p, default_storage: 'ftp://host/a'}}\n{REST}"
    (found,) = diagnose(text, in_schema=False)
    assert found.message == "default_storage must not have the scheme 'ftp'"
    assert found.hint.startswith("known: file://, s3://, gs://, memory://")
    assert found.excerpt is not None


def test_a_directory_is_relative_to_the_manifest(load, tmp_path):
    spec = load(f"version: 1\nproject: {{name: p, default_storage: results/a}}\n{REST}")
    spec = spec.resolve("t").spec
    assert spec.default_storage == "results/a"
    assert spec.storage_url == f"file://{tmp_path}/results/a"


@pytest.mark.parametrize("value", ["ftp://host/a", "s3://KEY:hidden@b"])
def test_a_bad_place_of_remembered_results_is_a_fault_at_its_place(diagnose, value):
    text = f"version: 1\nproject:\n  name: p\n  local_cache: {value}\n{REST}"
    (found,) = diagnose(text, in_schema=False)
    assert (found.code, found.dotted_path) == ("E_BAD_OPTION", "project.local_cache")
    assert found.line == 4
    assert found.column > 1
    assert found.message.startswith("local_cache must not ")
    assert "hidden" not in found.render()


def test_the_limit_of_remembered_results_is_a_size_that_clients_learn(load, diagnose):
    spec = load(f"version: 1\nproject: {{name: p, cache_limit: 50G}}\n{REST}").resolve("t").spec
    assert spec.cache_limit == 50 * 10**9
    told = CacheSettings.from_message(CacheSettings.of(spec).to_message())
    assert told.limit == 50 * 10**9
    assert load(f"version: 1\nproject: {{name: p}}\n{REST}").resolve("t").spec.cache_limit == (
        20 * 10**9
    )
    (found,) = diagnose(f"version: 1\nproject: {{name: p, cache_limit: much}}\n{REST}")
    assert found.dotted_path == "project.cache_limit"
