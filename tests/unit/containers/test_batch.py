"""The end of a batch script, run by a real shell with stand-ins for the runtimes."""

import contextlib
import os
import signal
import subprocess

import pytest

from scalable.containers import ContainerRequest, render_batch, render_command

JOB = "4711"
NAME = f"scalable-trial-gcam-0-{JOB}"
ODD = 'it\'s "q" $HOME `id` $(id) \\ * \n#; {x} & é'


@pytest.fixture
def start(stand_ins):
    started = []

    def do(script, shell="bash", **variables):
        process = subprocess.Popen(
            [shell, "-euc", script],
            env=stand_ins.environment(SLURM_JOB_ID=JOB, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield do
    for process in started:
        # What a test left running is in the process's group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("runtime", ["docker", "podman"])
@pytest.mark.parametrize("code", [0, 5])
def test_the_commands_exit_code_is_the_jobs(request_for, stand_ins, start, runtime, shell, code):
    process = start(render_batch(request_for(runtime), ["true"]), shell, CODE=str(code))
    assert process.wait(timeout=30) == code
    run, removal = stand_ins.calls()
    assert run[:4] == [runtime, "run", "--name", NAME]
    assert removal == [runtime, "rm", "--force", NAME]


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_a_cancelled_job_stops_and_removes_its_container(
    request_for, stand_ins, start, eventually, runtime, shell
):
    script = render_batch(request_for(runtime), ["true"], grace_s=20)
    process = start(script, shell, LASTS="1")
    eventually(lambda: stand_ins.verbs() == ["run"])
    process.terminate()
    assert process.wait(timeout=30) == 9
    assert stand_ins.calls()[1:] == [
        [runtime, "stop", "-t", "20", NAME],
        [runtime, "rm", "--force", NAME],
    ]


def test_a_job_cancelled_before_its_container_exists_ends_too(
    request_for, stand_ins, start, eventually
):
    process = start(render_batch(request_for("podman"), ["true"]), IMMUNE="1")
    eventually(lambda: stand_ins.verbs() == ["run"])
    process.terminate()
    assert process.wait(timeout=30) == 128 + signal.SIGKILL
    assert stand_ins.verbs() == ["run", "stop", "rm"]


def test_without_slurm_the_name_is_unique_all_the_same(request_for, stand_ins, start):
    script = "unset SLURM_JOB_ID\n" + render_batch(request_for("podman"), ["true"])
    processes = [start(script), start(script)]
    assert [process.wait(timeout=30) for process in processes] == [0, 0]
    names = {call[3] for call in stand_ins.calls() if call[1] == "run"}
    assert names == {f"scalable-trial-gcam-0-{process.pid}" for process in processes}


def test_apptainer_becomes_the_job(request_for, stand_ins, start, eventually):
    process = start(render_batch(request_for("apptainer"), ["true"]), LASTS="1")
    eventually(lambda: stand_ins.verbs() == ["exec"])
    process.terminate()
    assert process.wait(timeout=30) == 9
    assert stand_ins.pid() == process.pid


def odd_request(runtime):
    line = ODD.replace("\n", "")  # images and paths of two lines are refused
    return ContainerRequest(
        runtime,
        f"/images/{line}.sif",
        "odd",
        mounts={f"/host/{line}": f"/inside/{line}"},
        env={"ODD": ODD},
        workdir=f"/inside/{line}",
    )


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_odd_text_survives_the_shell(stand_ins, start, runtime):
    request = odd_request(runtime)
    assert start(render_batch(request, [ODD, ODD, ""])).wait(timeout=30) == 0
    direct = [word for word in render_command(request, [ODD, ODD, ""]) if word != "--interactive"]
    direct[direct.index("odd")] = f"odd-{JOB}"
    assert stand_ins.calls()[0] == direct


def test_odd_text_survives_the_shell_on_its_way_to_apptainer(stand_ins, start):
    request = odd_request("apptainer")
    assert start(render_batch(request, [ODD, ODD, ""])).wait(timeout=30) == 0
    direct = render_command(request, [ODD, ODD, ""])
    assert stand_ins.calls() == [direct[2:]]
    assert stand_ins.seen_environment()["APPTAINERENV_ODD"] == ODD


def test_apptainer_gets_what_the_job_has_and_nothing_that_it_has_not(request_for, stand_ins, start):
    request = request_for("apptainer", gpus=1, env={"OMP_NUM_THREADS": "4"})
    script = render_batch(request, ["true"], inherit=["SLURM_JOB_ID", "MISSING"])
    start(script, CUDA_VISIBLE_DEVICES="1,3").wait(timeout=30)
    passed = {k: v for k, v in stand_ins.seen_environment().items() if k.startswith("APPTAINERENV")}
    assert passed == {
        "APPTAINERENV_SLURM_JOB_ID": JOB,
        "APPTAINERENV_CUDA_VISIBLE_DEVICES": "1,3",
        "APPTAINERENV_OMP_NUM_THREADS": "4",
    }


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_the_others_are_told_the_names_of_what_they_take_from_the_job(
    request_for, stand_ins, start, runtime
):
    script = render_batch(request_for(runtime, gpus=1), ["true"], inherit=["SLURM_JOB_ID"])
    start(script).wait(timeout=30)
    passed = ["--env", "SLURM_JOB_ID", "--env", "CUDA_VISIBLE_DEVICES"]
    assert stand_ins.calls()[0][4:8] == passed
