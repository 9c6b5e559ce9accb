"""Batch scripts, and what a real bash makes of them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.model import ComponentSpec
from scalable.providers.slurm.options import SlurmOptions
from scalable.providers.slurm.queue import pool_name
from scalable.providers.slurm.render import (
    UNIT,
    JobTemplate,
    array_indices,
    batch_script,
    slurm_memory,
    slurm_time,
)
from scalable.providers.slurm.worker import JobRequest, job_template
from scalable.units import parse_bytes, parse_walltime

AWKWARD = {
    "PLAIN": "1",
    "SPACES": " two  words ",
    "QUOTES": """it's a "test" """,
    "SHELL": "$HOME `id` $(id) \\ ; & | > * ~ ! #",
    "LINES": "first\nsecond\n#SBATCH --partition=other",
    "EMPTY": "",
    "UTF8": "ü→",
}

FULL = JobTemplate(
    name="scalable-ab12cd-gcam",
    component=ComponentSpec("gcam", cpus=9.5, memory="20G", gpus=2),
    options={
        "queue": "batch",
        "account": "GCIMS",
        "walltime": "1-12:30:00",
        "qos": "high",
        "constraint": "rack1&a100",
        "reservation": "friday",
        "interface": "ib0",
        "directives": ("--mail-type=END", "--exclude=node[1-2]"),
    },
    environment={"OMP_NUM_THREADS": "9", "GREETING": "it's here", "TWO": "first\nsecond"},
    log="/shared/logs/gcam-%A_%a.log",
    prefix="gcam-ab12cd-",
    command=f"exec /opt/python -m worker '/shared/my config.json' {UNIT}",
)
FULL_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=scalable-ab12cd-gcam
#SBATCH --output=/shared/logs/gcam-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=10
#SBATCH --no-requeue
#SBATCH --mem=19074M
#SBATCH --gres=gpu:2
#SBATCH --time=1-12:30:00
#SBATCH --account=GCIMS
#SBATCH --partition=batch
#SBATCH --qos=high
#SBATCH --constraint=rack1&a100
#SBATCH --reservation=friday
#SBATCH --mail-type=END
#SBATCH --exclude=node[1-2]

SCALABLE_UNIT=gcam-ab12cd-"$((1000 + ${SLURM_ARRAY_TASK_ID:-0}))"
export OMP_NUM_THREADS=9
export GREETING='it'"'"'s here'
export TWO='first
second'
exec /opt/python -m worker '/shared/my config.json' "$SCALABLE_UNIT"
"""


def template_of(component):
    """The template of a component's jobs, with nothing in particular."""
    name = pool_name("x", "m", component.name, "n" * 63)
    request = JobRequest(component, {}, name, Path("/state/c.json"), Path("/work"))
    return job_template(request, prefix=f"{component.name}-x-", logs=Path("/logs"))


def test_the_script_of_a_full_component():
    assert batch_script(FULL, first=1000) == FULL_SCRIPT


def test_options_that_are_not_given_are_left_to_the_site():
    script = batch_script(JobTemplate("n", ComponentSpec("a", cpus=0.5), {}))
    assert re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script, re.MULTILINE) == [
        ("job-name", "n"), ("output", "slurm-%A_%a.log"), ("open-mode", "append"), ("ntasks", "1"),
        ("cpus-per-task", "1"), ("no-requeue", ""),
    ]  # fmt: skip


def test_a_command_without_a_worker_s_name_is_not_given_one():
    template = JobTemplate("n", ComponentSpec("a"), {}, command="exec true")
    assert batch_script(template).splitlines()[-1] == "exec true"
    assert "UNIT" not in batch_script(template)


# In bash ----------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A python that shows what it was given; the directory's name needs quotes."""
    directory = tmp_path / "it's a place"
    directory.mkdir()
    python = directory / "python"
    names = " ".join([*AWKWARD, "OMP_NUM_THREADS", "UNIT"])
    python.write_text(
        "#!/bin/bash\n"
        'printf \'%s\\0\' "$#" "$@"\n'
        f'for name in {names}; do printf "%s=%s\\0" "$name" "${{!name-unset}}"; done\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return python


def run(script, index):
    """What the stand-in shows: its arguments, and its environment."""
    environment = {"PATH": "/usr/bin:/bin"}
    if index is not None:
        environment["SLURM_ARRAY_TASK_ID"] = str(index)
    done = subprocess.run(
        ["bash"],
        input=script,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    count, *rest = done.stdout.split("\0")[:-1]
    shown = dict(text.split("=", 1) for text in rest[int(count) :])
    return rest[: int(count)], shown


@pytest.mark.parametrize(
    ("first", "index", "number"),
    [(0, 0, 0), (0, 7, 7), (1001, 0, 1001), (2002, 999, 3001), (12, None, 12)],
)
def test_the_worker_gets_its_name_and_its_configuration(stand_in, tmp_path, first, index, number):
    config = tmp_path / 'a "config" $HOME.json'
    component = ComponentSpec("gcam large", cpus=4, env=AWKWARD)
    options = SlurmOptions().model_dump()
    request = JobRequest(component, options, "scalable-c1.m-gcam_large", config, tmp_path)
    template = job_template(request, prefix="gcam large-ab12cd-", logs=tmp_path)
    arguments, shown = run(batch_script(template, first), index)
    assert arguments[-2:] == [str(config), f"gcam large-ab12cd-{number}"]
    assert {name: shown[name] for name in AWKWARD} == AWKWARD
    assert shown["OMP_NUM_THREADS"] == "4"


def test_the_worker_takes_the_place_of_the_script(tmp_path):
    """Slurm signals the script's process: only if that is the worker can it end in its own way."""
    template = JobTemplate("n", ComponentSpec("a"), {}, command="exec bash -c 'echo $$'")
    process = subprocess.Popen(
        ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    shown, _ = process.communicate(batch_script(template), timeout=60)
    assert int(shown) == process.pid
    made = template_of(ComponentSpec("a"))
    assert batch_script(made).splitlines()[-1].startswith("exec ")


# What sbatch reads ------------------------------------------------------------------------------


def header(script):
    """The directives that sbatch finds: it stops at the first line that is neither empty nor a comment.

    It splits them as a shell does, also at ``#`` (as sbatch 22.05 was seen to do).
    """
    words = []
    for line in script.splitlines():
        if line and not line.startswith("#"):
            return words
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
    return words


@given(st.dictionaries(st.sampled_from(["A", "B", "C"]), st.text(alphabet="a#'\"\n \\$SBATCH-=")))
def test_no_value_of_the_environment_becomes_a_directive(environment):
    template = JobTemplate("n", ComponentSpec("a"), {}, environment=environment)
    plain = JobTemplate("n", ComponentSpec("a"), {})
    assert header(batch_script(template)) == header(batch_script(plain))


@pytest.mark.parametrize("option", ["account", "queue", "qos", "constraint", "reservation"])
def test_an_option_of_several_lines_is_refused(option):
    with pytest.raises(ValueError, match="one line"):
        SlurmOptions.model_validate_json(f'{{"{option}": "a\\n#SBATCH --uid=0"}}')
    with pytest.raises(ValueError, match="one line"):
        SlurmOptions.model_validate_json('{"directives": ["--mail-type=END\\n#SBATCH --uid=0"]}')


@pytest.mark.parametrize("directory", ["my runs", "run#3", "it's"])
def test_a_log_directory_of_any_name_is_one_directive(directory):
    log = f"/shared/{directory}/a-%A_%a.log"
    script = batch_script(JobTemplate("n", ComponentSpec("a"), {}, log=log))
    assert f"--output={log}" in header(script)


def test_a_tag_of_several_lines_makes_no_directive(tmp_path):
    made = template_of(ComponentSpec("a\n#SBATCH --uid=0"))
    assert "--uid=0" not in header(batch_script(made))


# Values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("walltime", "shown"), [
    ("30", "0-00:30:00"), ("04:00:00", "0-04:00:00"), ("1-12", "1-12:00:00"),
    ("1-12:30", "1-12:30:00"), ("100:00:00", "4-04:00:00"), ("90s", "0-00:01:30"),
    ("1.5s", "0-00:00:02"), ("2 days", "2-00:00:00"),
])  # fmt: skip
def test_walltimes(walltime, shown):
    assert slurm_time(parse_walltime(walltime)) == shown


@given(st.integers(0, 400 * 86400))
def test_a_walltime_reads_as_it_was_written(seconds):
    assert parse_walltime(slurm_time(seconds)) == seconds


@pytest.mark.parametrize(
    ("memory", "shown"),
    [("20G", "19074M"), ("20GiB", "20480M"), ("1", "1M"), ("1MiB", "1M"), ("1048577", "2M")],
)
def test_amounts_of_memory(memory, shown):
    assert slurm_memory(parse_bytes(memory)) == shown


@pytest.mark.parametrize(
    ("indices", "shown"),
    [([0], "0"), ([0, 1, 2, 3, 4, 7], "0-4,7"), ([9, 7, 8], "7-9"), ([0, 2, 4], "0,2,4"), ([], "")],
)
def test_indices_in_runs(indices, shown):
    assert array_indices(indices) == shown


@given(st.sets(st.integers(0, 3000)), st.randoms())
def test_indices_come_back_as_they_were(indices, random):
    shuffled = sorted(indices)
    random.shuffle(shuffled)
    found = []
    for run_ in filter(None, array_indices(shuffled).split(",")):
        low, _, high = run_.partition("-")
        found += range(int(low), int(high or low) + 1)
    assert found == sorted(indices)


def test_logs_have_names_that_every_file_system_takes():
    made = template_of(ComponentSpec("a/b c"))
    assert made.log == "/logs/a_b_c-%A_%a.log"
