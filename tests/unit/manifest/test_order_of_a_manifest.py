"""``order`` of a project and of a target."""

import pytest


def manifest(project="", target=""):
    return (
        f"version: 1\nproject: {{name: p{project}}}\n"
        f"targets: {{t: {{provider: local{target}}}}}\ncomponents: {{a: }}\n"
    )


@pytest.mark.parametrize(
    ("project", "target", "order"),
    [
        ("", "", "critical-path"),
        (", order: submitted", "", "submitted"),
        ("", ", order: submitted", "submitted"),
        (", order: submitted", ", order: critical-path", "critical-path"),
    ],
)
def test_the_target_comes_before_the_project(project, target, order, load):
    resolved = load(manifest(project, target)).resolve("t")
    assert resolved.spec.order == order
    # The resolved manifest, which is written into the record of a run, says the same.
    assert load(resolved.to_yaml()).resolve("t").spec.order == order


def test_other_orders_are_faults_at_their_place(diagnose):
    found = diagnose(manifest(", order: fifo"))
    assert found[0].dotted_path == "project.order"
    assert found[0].line == 2
