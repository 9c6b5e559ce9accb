"""What the launcher says to Slurm, and what it makes of the answers.

Slurm's commands are stand-ins on the PATH: they note what they were called with, and answer what
the test wrote down for them.
"""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from scalable.errors import ProviderError
from scalable.manager.launcher import SUCCESSOR, LimitReachedError, UnitState
from scalable.providers.slurm.api import Slurm
from scalable.providers.slurm.launcher import UNSEEN_GRACE_S, JobPool, SlurmLauncher

STAND_IN = """\
#!{python} -IS
import json, os, sys
directory, name = {directory!r}, os.path.basename(sys.argv[0])
text = sys.stdin.read() if name == "sbatch" else ""
with open(os.path.join(directory, "calls"), "a") as calls:
    calls.write(json.dumps([name, sys.argv[1:], text]) + chr(10))
answers = sorted(f for f in os.listdir(directory) if f.startswith(name + "-"))
with open(os.path.join(directory, answers[0])) as file:
    code, out, err = json.load(file)
if len(answers) > 1:
    os.unlink(os.path.join(directory, answers[0]))
sys.stdout.buffer.write(out.encode("utf-8", "surrogateescape"))
sys.stderr.write(err)
sys.stdout.flush()
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
NO_CONTACT = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
LOST = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
BAD_ACCOUNT = (
    "sbatch: error: Batch job submission failed: "
    "Invalid account or account/partition combination specified\n"
)


class FakeSlurm:
    """Stand-ins for Slurm's commands, and what they were called with."""

    def __init__(self, directory):
        self.directory = directory
        self._answers = 0
        for name in ("sbatch", "squeue", "scancel", "scontrol"):
            path = directory / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(STAND_IN.format(python=sys.executable, directory=str(directory)))
            path.chmod(0o755)
            self.answer(name)

    def answer(self, name, out="", *, err="", code=None):
        """The only answer from now on."""
        for old in self.directory.glob(f"{name}-*"):
            old.unlink()
        self.then(name, out, err=err, code=code)

    def then(self, name, out="", *, err="", code=None):
        """The answer after those that were given before; the last one is repeated."""
        self._answers += 1
        answer = [int(bool(err)) if code is None else code, out, err]
        (self.directory / f"{name}-{self._answers:06d}").write_text(json.dumps(answer))

    def calls(self, name):
        path = self.directory / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call[0] == name]

    def count(self):
        return {name: len(self.calls(name)) for name in ("sbatch", "squeue", "scancel")}

    def arrays(self):
        """What was submitted: the script's first number, and the indices."""
        found = []
        for _, arguments, script in self.calls("sbatch"):
            indices = [a.removeprefix("--array=") for a in arguments if a.startswith("--array=")]
            found.append((script, indices[0] if indices else None))
        return found

    def cancelled(self):
        return [e for _, arguments, _ in self.calls("scancel") for e in arguments[1:]]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Arrays of up to 1001, job ids from 101, and an empty queue."""
    made = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    made.answer("scontrol", "MaxArraySize            = 1001\n")
    made.answer("sbatch", "101\n")
    for number in range(102, 110):
        made.then("sbatch", f"{number}\n")
    return made


@pytest.fixture
def launcher(tmp_path):
    """A launcher with the pool ``a``."""
    pool = JobPool(
        name="scalable-c1-a",
        prefix="a-c1-",
        script=lambda first: f"first={first}",
        log=lambda job, index: str(tmp_path / f"log-{job}-{index}"),
    )
    return SlurmLauncher(Slurm(), {"a": pool}, Path("/state/c1"))


def entries(*numbers):
    return {f"a-c1-{number}": {"pool": "a"} for number in numbers}


def names(*numbers):
    return list(entries(*numbers))


def line(
    job, index, state, reason="None", left="1:00:00", *, name="scalable-c1-a", first=0, **more
):
    comment = json.dumps({"scalable": name, "first": first, **more}, separators=(",", ":"))
    return f"{job}|{'N/A' if index is None else index}|{name}|{state}|{reason}|{left}|n|{comment}\n"


async def look(launcher):
    """Have a poll made now, and say what it brought."""
    launcher._poll_at = 0.0
    launcher.observe()
    await launcher._polling
    return launcher.observe()


async def settled(launcher):
    """The state of each unit after a poll."""
    return {name: seen.state for name, seen in (await look(launcher)).items()}


# Launching --------------------------------------------------------------------------------------


async def test_existing_units_are_not_submitted_again(slurm, launcher):
    await launcher.launch(entries(0, 1))
    await launcher.launch(entries(0, 1, 2))
    await launcher.launch(entries(0, 1, 2))
    assert slurm.arrays() == [("first=0", "0-1"), ("first=0", "2")]


async def test_no_more_jobs_are_requested_than_the_target_allows(slurm, tmp_path):
    pool = JobPool("n", "a-c1-", lambda first: f"first={first}", lambda *_: str(tmp_path / "log"))
    launcher = SlurmLauncher(Slurm(), {"a": pool}, Path("/state/c1"), at_most=3)
    await launcher.launch(entries(0, 1))
    with pytest.raises(LimitReachedError, match="at_most allows 3 jobs"):
        await launcher.launch(entries(2, 3))
    await launcher.launch(entries(2))
    with pytest.raises(LimitReachedError):
        await launcher.launch(entries(3))
    await launcher.launch(entries(0, 1, 2))

    successor = {name: {**entry, SUCCESSOR: True} for name, entry in entries(3).items()}
    await launcher.launch(successor)
    with pytest.raises(LimitReachedError):
        await launcher.launch(entries(4))
    assert slurm.arrays() == [("first=0", "0-1"), ("first=0", "2"), ("first=0", "3")]


def test_the_size_of_arrays_is_respected(slurm, launcher):
    slurm.answer("scontrol", "MaxArraySize            = 10\n")
    asyncio.run(launcher.launch(entries(*range(8, 13))))
    assert slurm.arrays() == [("first=0", "8-9"), ("first=10", "0-2")]
    assert launcher.job_of("a-c1-9") == "101_9"
    assert launcher.job_of("a-c1-12") == "102_2"
    comments = [json.loads(call[1][1].removeprefix("--comment=")) for call in slurm.calls("sbatch")]
    assert [comment["first"] for comment in comments] == [0, 10]


@pytest.mark.parametrize("size", [0, 1])
async def test_without_job_arrays_each_worker_is_a_job(slurm, launcher, size):
    slurm.answer("scontrol", f"MaxArraySize            = {size}\n")
    slurm.answer("squeue", line(101, None, "RUNNING", first=4) + line(102, None, "PENDING"))
    await launcher.launch(entries(4, 5))
    states = await settled(launcher)
    assert slurm.arrays() == [("first=4", None), ("first=5", None)]
    assert launcher.job_of("a-c1-5") == "102"
    assert states == {"a-c1-4": UnitState.RUNNING, "a-c1-5": UnitState.PENDING}


def test_an_unknown_array_limit_is_slurms_default(slurm, launcher):
    slurm.answer("scontrol", "Configuration data\n")
    asyncio.run(launcher.launch(entries(1000, 1001)))
    assert slurm.arrays() == [("first=0", "1000"), ("first=1001", "0")]


def test_an_answer_with_the_cluster_s_name_is_understood(slurm, launcher):
    slurm.answer("sbatch", "a notice of the site\n4711;testbed\n")
    asyncio.run(launcher.launch(entries(0)))
    assert launcher.job_of("a-c1-0") == "4711_0"


@pytest.mark.parametrize(
    ("words", "transient"), [(BAD_ACCOUNT, False), (LOST, True), (NO_CONTACT, True)]
)
def test_a_refusal_has_slurm_s_words_and_says_whether_it_may_pass(
    slurm, launcher, words, transient
):
    slurm.answer("sbatch", err=words)
    with pytest.raises(ProviderError) as caught:
        asyncio.run(launcher.launch(entries(0)))
    assert words.strip() in caught.value.message
    assert caught.value.transient is transient
    assert launcher.observe() == {}


async def test_jobs_submitted_before_a_refusal_stay_known_and_can_be_cancelled(slurm, launcher):
    slurm.answer("scontrol", "MaxArraySize            = 10\n")
    slurm.answer("sbatch", "101\n")
    slurm.then("sbatch", err=BAD_ACCOUNT)
    with pytest.raises(ProviderError):
        await launcher.launch(entries(8, 9, 10))
    assert set(launcher.observe()) == set(names(8, 9))
    await launcher.stop(names(8, 9, 10))
    assert slurm.cancelled() == ["101_8", "101_9"]


@pytest.mark.parametrize("out", ["", "Thank you for your submission\n"])
def test_an_answer_that_is_no_job_is_shown(slurm, launcher, out):
    slurm.answer("sbatch", out)
    with pytest.raises(ProviderError, match="sbatch"):
        asyncio.run(launcher.launch(entries(0)))


# What was submitted although its answer was lost


async def test_units_taken_over_are_found_by_name_and_job_number(slurm, launcher):
    """Two of five were submitted; other pools' jobs have the same indices."""
    await launcher.launch(entries(0))
    slurm.answer("squeue", err=NO_CONTACT)
    await look(launcher)
    slurm.answer(
        "squeue",
        line(105, 1, "RUNNING", first=10)
        + line(105, 3, "PENDING", first=10)
        + line(106, 12, "RUNNING", name="scalable-c1-ab")
        + line(107, 12, "RUNNING", name="scalable-c2-a"),
    )
    await launcher.launch(entries(10, 11, 12, 13, 14))
    assert launcher.job_of("a-c1-11") == "105_1"
    assert launcher.job_of("a-c1-13") == "105_3"
    assert slurm.arrays()[1:] == [("first=0", "10,12,14")]


async def test_an_answered_poll_does_not_make_a_lost_answer_forgotten(slurm, launcher):
    await launcher.launch(entries(0))
    slurm.answer("sbatch", err=LOST)
    with pytest.raises(ProviderError):
        await launcher.launch(entries(1))
    slurm.answer("squeue", line(101, 0, "PENDING") + line(102, 1, "PENDING"))
    await look(launcher)
    slurm.answer("sbatch", "103\n")
    await launcher.launch(entries(1))
    assert launcher.job_of("a-c1-1") == "102_1"


async def test_ended_jobs_are_not_taken_over(slurm, launcher):
    await launcher.launch(entries(0))
    slurm.answer("squeue", err=NO_CONTACT)
    await look(launcher)
    slurm.answer("squeue", line(105, 1, "CANCELLED"))
    await launcher.launch(entries(1))
    assert launcher.job_of("a-c1-1") == "102_1"


async def test_another_process_s_job_of_the_same_number_is_not_taken_for_the_lost_one(
    slurm, launcher
):
    slurm.answer("sbatch", err=LOST)
    with pytest.raises(ProviderError):
        await launcher.launch(entries(0))
    slurm.answer("sbatch", "102\n")
    slurm.answer("squeue", line(101, 0, "PENDING", prefix="a-c0-"))
    await launcher.launch(entries(0))
    assert launcher.job_of("a-c1-0") == "102_0"


# What an earlier process submitted


async def test_jobs_of_an_earlier_process_are_taken_over_by_their_exact_name(slurm, launcher):
    own = {"directory": "/state/c1", "prefix": "a-c0-"}
    slurm.answer(
        "squeue",
        line(51, 0, "RUNNING", left="30:00", **own)
        + line(51, 1, "PENDING", "Resources", **own)
        + line(52, 3, "RUNNING", first=1001, **own)
        + line(53, None, "RUNNING", first=7, **own)
        + line(54, 8, "CANCELLED", **own)
        + line(55, 9, "RUNNING", name="scalable-c1-ab", **own)
        + line(56, 10, "RUNNING", **own | {"directory": "/state/c2"}),
    )
    adopted = await launcher.adopt()
    assert await launcher.adopt() == {}
    seen = launcher.observe()
    slurm.answer("squeue", "")
    await launcher.stop([*adopted])
    assert set(adopted.values()) == {"a"}
    states = {name: observed.state.value for name, observed in seen.items()}
    assert states == dict.fromkeys(("a-c0-0", "a-c0-1004", "a-c0-7"), "running") | {
        "a-c0-1": "pending"
    }
    assert slurm.cancelled() == ["51_0", "51_1", "52_3", "53"]


def test_jobs_whose_comment_was_changed_are_counted_and_left(slurm, launcher, caplog):
    slurm.answer("squeue", line(51, 0, "RUNNING").replace("{", "site: {"))
    assert asyncio.run(launcher.adopt()) == {}
    assert "1 jobs of an earlier process do not contain the names of their workers" in caplog.text


async def test_jobs_of_a_cancelled_request_are_cancelled_too(slurm, launcher, monkeypatch):
    submit, began, go_on = launcher._slurm.submit, asyncio.Event(), asyncio.Event()

    async def slow_submit(*arguments, **options):
        began.set()
        await go_on.wait()
        return await submit(*arguments, **options)

    monkeypatch.setattr(launcher._slurm, "submit", slow_submit)
    launch = asyncio.create_task(launcher.launch(entries(0, 1)))
    await began.wait()
    launch.cancel()
    stop = asyncio.create_task(launcher.stop(names(0, 1)))
    await asyncio.sleep(0.05)
    assert not stop.done()
    go_on.set()
    await stop
    assert slurm.cancelled() == ["101_0", "101_1"]


# Looking ----------------------------------------------------------------------------------------


async def test_states_come_from_one_poll_for_all(slurm, launcher):
    await launcher.launch(entries(*range(6)))
    assert {seen.reason for seen in launcher.observe().values()} == {"submitted"}
    slurm.answer(
        "squeue",
        line(101, 0, "RUNNING", left="30:00")
        + line(101, 1, "PENDING", "Resources")
        + line(101, 2, "FAILED", "NonZeroExitCode")
        + line(101, 3, "NODE_FAIL", "NodeDown")
        + line(101, 4, "RUNNING", left="UNLIMITED")
        + line(999, 5, "RUNNING"),
    )
    seen = await look(launcher)
    states = [seen[name].state.value for name in names(*range(6))]
    assert states == ["running", "pending", "ended", "ended", "running", "pending"]
    assert 1790 < seen["a-c1-0"].left_s <= 1800
    assert seen["a-c1-4"].left_s is None
    assert seen["a-c1-1"].reason == "waiting: Resources: it waits for nodes to become free"
    assert (seen["a-c1-2"].from_outside, seen["a-c1-3"].from_outside) == (False, True)
    assert seen["a-c1-3"].reason == "its node failed (NODE_FAIL, NodeDown)"
    assert seen["a-c1-5"].reason == "submitted"


async def test_the_element_that_has_the_array_s_id_is_not_mistaken_for_another(slurm, launcher):
    """Slurm gives the element that started last the id of the array; the index decides."""
    await launcher.launch(entries(0, 1))
    slurm.answer("squeue", line(101, 1, "RUNNING") + line(101, None, "FAILED"))
    assert await settled(launcher) == {"a-c1-0": UnitState.PENDING, "a-c1-1": UnitState.RUNNING}


async def test_looking_often_asks_slurm_seldom(slurm, launcher):
    await launcher.launch(entries(0))
    slurm.answer("squeue", line(101, 0, "RUNNING"))
    await look(launcher)
    for _ in range(100):
        launcher.observe()
        await asyncio.sleep(0)
    assert len(slurm.calls("squeue")) == 1


async def test_while_slurm_does_not_answer_states_are_kept_and_it_is_said_once(
    slurm, launcher, caplog
):
    await launcher.launch(entries(0, 1))
    slurm.answer("squeue", line(101, 0, "RUNNING") + line(101, 1, "PENDING"))
    before = await settled(launcher)
    slurm.answer("squeue", err=NO_CONTACT)
    for unit in launcher._units.values():
        unit.submitted_at -= 2 * UNSEEN_GRACE_S
    assert [await settled(launcher) for _ in range(3)] == [before] * 3
    slurm.answer("squeue", line(101, 0, "RUNNING") + line(101, 1, "PENDING"))
    assert [await settled(launcher) for _ in range(2)] == [before] * 2
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "Unable to contact slurm controller" in texts[0]
    assert "answers again" in texts[1]


async def test_a_job_that_is_not_in_the_queue_has_ended_only_after_a_while(slurm, launcher):
    await launcher.launch(entries(0))
    assert await settled(launcher) == {"a-c1-0": UnitState.PENDING}
    launcher._units["a-c1-0"].submitted_at -= UNSEEN_GRACE_S
    seen = (await look(launcher))["a-c1-0"]
    assert seen.state is UnitState.ENDED
    assert seen.reason == "it left the queue"
    assert not seen.from_outside


@pytest.mark.parametrize(
    "answer", [{"code": -9}, {"code": 0}, {"err": LOST}], ids=["killed", "silent", "lost"]
)
async def test_jobs_that_sbatch_did_not_name_are_found_by_the_next_request(slurm, launcher, answer):
    slurm.answer("sbatch", **answer)
    with pytest.raises(ProviderError) as caught:
        await launcher.launch(entries(0, 1))
    assert caught.value.transient
    slurm.answer("squeue", line(101, 0, "RUNNING") + line(101, 1, "PENDING"))
    await launcher.launch(entries(0, 1))
    states = await settled(launcher)
    assert states == {"a-c1-0": UnitState.RUNNING, "a-c1-1": UnitState.PENDING}
    assert launcher.job_of("a-c1-0") == "101_0"
    assert slurm.count()["sbatch"] == 1


async def test_a_refusal_for_too_many_jobs_leaves_nothing_to_look_for(slurm, launcher):
    slurm.answer("sbatch", err="sbatch: error: AssocMaxSubmitJobLimit\n")
    with pytest.raises(LimitReachedError, match="AssocMaxSubmitJobLimit"):
        await launcher.launch(entries(0, 1))
    slurm.answer("sbatch", "101\n")
    await launcher.launch(entries(0))
    assert slurm.count()["squeue"] == 0


async def test_jobs_of_an_unanswered_request_are_cancelled_and_no_others(slurm, launcher):
    slurm.answer("sbatch", err=LOST)
    with pytest.raises(ProviderError):
        await launcher.launch(entries(0, 1))
    slurm.answer(
        "squeue",
        line(101, 0, "PENDING")
        + line(101, 1, "PENDING")
        + line(102, None, "PENDING", name="scalable-c1-b")
        + line(103, 0, "FAILED"),
    )
    await launcher.cancel_unanswered()
    await launcher.cancel_unanswered()
    assert slurm.cancelled() == ["101"]


@pytest.mark.parametrize("ran", [False, True])
async def test_a_waiting_job_that_vanishes_was_cancelled_unless_it_left_a_log(
    slurm, launcher, tmp_path, ran
):
    await launcher.launch(entries(0))
    slurm.answer("squeue", line(101, 0, "PENDING", "Resources"))
    await look(launcher)
    slurm.answer("squeue")
    if ran:
        (tmp_path / "log-101-0").touch()
    launcher._units["a-c1-0"].submitted_at -= UNSEEN_GRACE_S
    seen = (await look(launcher))["a-c1-0"]
    assert (seen.state, seen.from_outside) == (UnitState.ENDED, not ran)


async def test_a_name_in_another_encoding_does_not_blind_the_poll(slurm, launcher):
    await launcher.launch(entries(0))
    slurm.answer("squeue", "7|N/A|caf\udce9|RUNNING|None|1:00|n|(null)\n" + line(101, 0, "RUNNING"))
    assert await settled(launcher) == {"a-c1-0": UnitState.RUNNING}


@pytest.mark.parametrize("variable", ["SQUEUE_PARTITION", "SQUEUE_NAMES", "SQUEUE_ACCOUNT"])
async def test_the_user_s_filters_for_squeue_do_not_reach_it(
    slurm, launcher, monkeypatch, variable
):
    """Seen on a real Slurm: with them the queue looks empty, and no option takes them back."""
    monkeypatch.setenv(variable, "nothing")
    stand_in = slurm.directory / "bin" / "squeue"
    text = stand_in.read_text().replace("sys.exit(code)", f"sys.exit({variable!r} in os.environ)")
    stand_in.write_text(text)
    await launcher._slurm.queue()


async def test_variables_that_break_jobs_do_not_reach_sbatch(slurm, launcher, monkeypatch, caplog):
    breaking = {"SLURM_CLUSTERS": "other", "SBATCH_GPUS": "2", "SBATCH_WAIT": "1"}
    outer = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "9", "SLURM_CPU_BIND": "x", "PMI_RANK": "1"}
    for name, value in (breaking | outer | {"SLURM_CONF": "c", "SBATCH_WCKEY": "w"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("scalable.providers.slurm.api._named", set())
    stand_in, seen = slurm.directory / "bin" / "sbatch", slurm.directory / "seen"
    shown = f"open({str(seen)!r}, 'a').write(' '.join(os.environ) + ' ')\n"
    stand_in.write_text(stand_in.read_text().replace("sys.exit(code)", f"{shown}sys.exit(code)"))
    await launcher.launch(entries(0))
    await launcher.launch(entries(1))
    reached = set(seen.read_text().split())
    assert not reached & (breaking | outer).keys()
    assert {"SLURM_CONF", "SBATCH_WCKEY"} <= reached
    (warned,) = (r.message for r in caplog.records if "not passed to sbatch" in r.message)
    assert "SBATCH_GPUS=2, SBATCH_WAIT=1, SLURM_CLUSTERS=other" in warned


# Ending -----------------------------------------------------------------------------------------


async def test_stopping_is_one_scancel_and_waits_until_they_are_gone(slurm, launcher):
    await launcher.launch(entries(*range(20)))
    still = "".join(line(101, i, "COMPLETING") for i in range(20))
    slurm.answer("squeue", still)
    slurm.then("squeue", line(101, 0, "CANCELLED") + line(101, 1, "COMPLETING"))
    slurm.then("squeue", line(101, 0, "CANCELLED") + line(101, 1, "CANCELLED"))
    await launcher.stop(names(*range(20)))
    assert launcher.observe() == {}
    assert slurm.cancelled() == [f"101_{i}" for i in range(20)]
    assert slurm.count() == {"sbatch": 1, "squeue": 3, "scancel": 1}


async def test_so_many_that_a_command_line_might_not_hold_them_are_cancelled_in_parts(
    slurm, launcher
):
    await launcher.launch(entries(*range(750)))
    await launcher.stop(names(*range(750)))
    assert sorted(slurm.cancelled()) == sorted(f"101_{i}" for i in range(750))
    assert len(slurm.calls("scancel")) == 2


async def test_ended_jobs_need_no_cancel_command(slurm, launcher):
    await launcher.launch(entries(0))
    slurm.answer("squeue", line(101, 0, "FAILED"))
    await look(launcher)
    before = slurm.count()
    await launcher.stop(names(0))
    await launcher.stop(names(0))
    await launcher.stop(["never heard of"])
    assert launcher.observe() == {}
    assert slurm.count() == before


@pytest.mark.parametrize("command", ["scancel", "squeue"])
async def test_stopping_outlasts_a_moment_without_an_answer(slurm, launcher, command):
    """Nobody asks a second time: a job that waits would start later, and belong to nobody."""
    await launcher.launch(entries(0))
    slurm.answer(command, err=NO_CONTACT)
    slurm.then(command)
    await launcher.stop(names(0))
    assert launcher.observe() == {}
    assert "101_0" in slurm.cancelled()


# Logs -------------------------------------------------------------------------------------------


def test_the_end_of_a_log(slurm, launcher, tmp_path):
    asyncio.run(launcher.launch(entries(0, 1)))
    Path(tmp_path / "log-101-0").write_bytes(b"x" * 20_000 + b"\xff the end\n")
    shown = asyncio.run(launcher.logs("a-c1-0"))
    assert len(shown) <= 8192
    assert shown.endswith("\N{REPLACEMENT CHARACTER} the end\n")
    assert asyncio.run(launcher.logs("a-c1-1")) == ""
    assert asyncio.run(launcher.logs("never heard of")) == ""
