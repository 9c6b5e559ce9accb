"""``keep_results`` of a project and of a target."""

import pytest

from scalable.model import KeepResults
from scalable.model.cache_settings import CacheSettings


def manifest(project="", target=""):
    return (
        f"version: 1\nproject: {{name: p{project}}}\n"
        f"targets: {{t: {{provider: local{target}}}}}\ncomponents: {{a: }}\n"
    )


@pytest.mark.parametrize(("project", "target", "kept"), [
    ("", "", None),
    (", keep_results: false", "", None),
    (", keep_results: true", "", KeepResults(20 * 10**9, 30 * 86400)),
    (", keep_results: {size: 1G}", "", KeepResults(10**9, 30 * 86400)),
    (", keep_results: true", ", keep_results: false", None),
    ("", ", keep_results: {age: 2h}", KeepResults(20 * 10**9, 7200)),
])  # fmt: skip
def test_the_target_comes_before_the_project(project, target, kept, load):
    resolved = load(manifest(project, target)).resolve("t")
    assert resolved.spec.keep_results == kept
    # The resolved manifest, which is written into the record of a run, says the same.
    assert load(resolved.to_yaml()).resolve("t").spec.keep_results == kept


@pytest.mark.parametrize("written", ["yes please", "3", "{size: much}", "{sizes: 1G}"])
def test_other_values_are_faults_at_their_place(written, diagnose):
    found = diagnose(manifest(f", keep_results: {written}"), in_schema=False)
    assert found[0].dotted_path.startswith("project.keep_results")
    assert found[0].line == 2


def test_images_have_a_part_in_keys_only_where_they_are_used(load):
    text = """
version: 1
project: {name: harvest}
targets: {without: {provider: local, containers: none}, within: {provider: local, containers: auto}}
components: {main: {cpus: 1, image: "model:1"}}
"""
    parts = [
        CacheSettings.of(load(text).resolve(target).spec).environments["main"]
        for target in ("without", "within")
    ]
    assert parts == [{}, {"image": "model:1"}]
