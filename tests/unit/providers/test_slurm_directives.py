"""Directives of users: those that would replace an option of scalable's are refused by name."""

import pytest
from pydantic import ValidationError

from scalable.errors import ProviderError
from scalable.model import ComponentSpec
from scalable.providers.slurm.options import SlurmOptions
from scalable.providers.slurm.render import JobTemplate, batch_script, directive_fault


@pytest.mark.parametrize(
    "text",
    [
        "--mail-type=END", "--exclude=node[1-2]", "-x node[1-2]", "--nodes=1", "-N1", "--exclusive",
        "--time-min=10", "--mem-bind=local", "--export=NONE", "--quiet", "-Q", "--gres=lscratch:10",
        "--dependency afterok:12", "-sQ", "--wckey=one", "-xpnode",
    ],
)  # fmt: skip
def test_options_that_scalable_does_not_set_may_be_added(text):
    assert directive_fault(text) is None
    SlurmOptions(directives=(text,))


@pytest.mark.parametrize(("text", "option", "hint"), [
    ("--partition=short", "partition", "queue in the target"),
    ("-p short", "partition", "queue"),
    ("-pshort", "partition", "queue"),
    ("-Hpshort", "partition", "queue"),
    ("--part=short", "partition", "queue"),
    ("--mail-type=END --time=1", "time", "walltime"),
    ("--mem-per-cpu=2G", "mem-per-cpu", "memory in the component"),
    ("--job-name=mine", "job-name", "leave it out"),
    ("--job=mine", "job-name", "leave it out"),
    ("-J mine", "job-name", "leave it out"),
    ("--requeue", "requeue", "leave it out"),
    ("--array=1-3", "array", "leave it out"),
    ("--output=/tmp/log", "output", "logs in the target"),
    ("--wait", "wait", "leave it out"),
    ("-c 4", "cpus-per-task", "cpus in the component"),
    ("--comment=ours", "comment", "leave it out"),
])  # fmt: skip
def test_an_option_that_scalable_sets_is_refused_with_the_way_out(text, option, hint):
    message, way_out = directive_fault(text)
    assert message == f"{text!r} cannot be a directive: scalable sets --{option}"
    assert hint in way_out
    with pytest.raises(ValidationError, match=f"scalable sets --{option}"):
        SlurmOptions(directives=(text,))
    template = JobTemplate("j", ComponentSpec("a"), {"directives": (text,)})
    with pytest.raises(ProviderError, match=f"scalable sets --{option}"):
        batch_script(template)


def test_gres_is_refused_where_the_component_has_gpus():
    options = {"directives": ("--gres=lscratch:10",)}
    batch_script(JobTemplate("j", ComponentSpec("a"), options))
    with pytest.raises(ProviderError, match="gpus"):
        batch_script(JobTemplate("j", ComponentSpec("a", gpus=1), options))
