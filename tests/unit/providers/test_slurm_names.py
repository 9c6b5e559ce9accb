"""Names and comments of jobs, and what is read from them."""

from dataclasses import replace
from pathlib import Path

import pytest

from scalable.providers.slurm.queue import (
    Element,
    JobState,
    cluster_of,
    comment,
    kind_of,
    pool_name,
    said_by,
    service_name,
    worker_of,
)

ID = "529452be-7b19-4b31-99aa-1c7fc8f1d685"
ELEMENT = Element(7, 2, "n", JobState.THERE, "", None, "RUNNING")


def test_the_names_of_a_cluster_s_jobs():
    assert pool_name(ID, "hpc", "gcam large", "my run") == f"my_run.scalable-{ID}.hpc@gcam_large"
    assert service_name(ID, "scheduler", "run.1") == f"run.1.scalable-{ID}.@scheduler"
    assert service_name(ID, "hpc", "") == f"scalable-{ID}.@manager-hpc"


def test_no_two_pools_of_a_cluster_have_jobs_of_the_same_name():
    assert pool_name(ID, "a", "b-c", "n") != pool_name(ID, "a-b", "c", "n")


def test_names_say_whose_they_are_and_what():
    assert cluster_of(pool_name(ID, "hpc", "a", "n")) == ID
    assert kind_of(pool_name(ID, "hpc", "a", "n")) is None
    assert kind_of(service_name(ID, "scheduler", "n.scalable-x")) == "scheduler"
    assert kind_of(service_name(ID, "hpc", "n")) == "hpc"
    assert cluster_of(service_name(ID, "hpc", "n")) == ID


@pytest.mark.parametrize(
    "name",
    ["", "interactive", "scalable-ab12cd.embedded@a", f"scalable-{ID}", f"x-scalable-{ID}.a"],
)
def test_jobs_of_others_belong_to_no_cluster(name):
    assert cluster_of(name) is None
    assert kind_of(name) is None


def test_an_element_says_which_worker_it_is():
    said = comment("n", Path("/here"), first=1000, prefix="a-hpc-12ab-")
    element = replace(ELEMENT, comment=said)
    assert worker_of(element) == "a-hpc-12ab-1002"
    assert said_by(element)["directory"] == "/here"


@pytest.mark.parametrize("written", ["", "the site's own", "[1]", '{"other": 1}', '"scalable"'])
def test_a_comment_of_somebody_else_s_says_nothing(written):
    element = replace(ELEMENT, comment=written)
    assert said_by(element) == {}
    assert worker_of(element) is None
