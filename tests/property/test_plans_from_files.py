"""Plans that were made before are started as they are, or refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalable.errors import PlanError
from scalable.manifest import Manifest
from scalable.providers.registry import option_models
from scalable.session.plan_files import checked_plan, read_plan
from scalable.session.request import Request

durations = st.integers(1, 500)
counts = st.lists(st.integers(0, 50), min_size=2, max_size=2)


def request(count, duration, most):
    data = {
        "version": 1,
        "project": {"name": "p"},
        "targets": {"local": {"provider": "local", "max_workers": most}},
        "components": {"model": {"cpus": 1}, "post": {"cpus": 2, "memory": "1G"}},
        "tasks": {"simulate": {"component": "model", "count": count, "duration": f"{duration}s"}},
    }
    manifest = Manifest.from_mapping(data, option_models())
    return Request(manifest.resolve("local"), manifest)


@settings(max_examples=15)
@given(st.integers(1, 99), durations, st.integers(2, 60), counts)
def test_the_started_counts_are_those_of_the_file(tmp_path_factory, count, duration, most, chosen):
    here = request(count, duration, most)
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    made = here.plan(deadline="100d")
    made.save(file)
    assert checked_plan(here, read_plan(file)).scale_plan == made.scale_plan
    data = made.to_dict()
    data["scale_plan"]["workers_by_tag"] = dict(zip(("model", "post"), chosen, strict=True))
    data["scale_plan"]["resources_by_tag"]["model"]["memory"] = "900G"
    file.write_text(json.dumps(data))
    started = checked_plan(here, read_plan(file))
    assert list(started.scale_plan.workers_by_tag.values()) == chosen
    # Resources are the manifest's.
    assert started.scale_plan.resources_by_tag == made.scale_plan.resources_by_tag


@settings(max_examples=15)
@given(st.integers(1, 99), durations, st.integers(2, 60), st.data())
def test_a_changed_manifest_refuses(count, duration, most, data):
    values = [count, duration, most]
    plan = request(*values).plan()
    assert checked_plan(request(*values), plan)
    place = data.draw(st.integers(0, 2))
    values[place] += data.draw(st.integers(1, 9))
    with pytest.raises(PlanError, match="another manifest"):
        checked_plan(request(*values), plan)
