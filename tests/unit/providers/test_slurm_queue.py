"""What Slurm prints, as a real Slurm 22.05 printed it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.providers.slurm.queue import (
    FROM_OUTSIDE,
    SQUEUE_FORMAT,
    JobState,
    explain_end,
    explain_reason,
    is_transient,
    parse_config,
    parse_left,
    parse_queue,
    parse_record,
)

#: The user's other jobs are in it too, whatever they are called.
PRINTED = """\
1|1|run|CANCELLED|None|59:59|node1|{"scalable":"scalable-ab12cd-gcam","first":0}
2|3|wide|PENDING|Resources|1-00:00:00||a|b|c
2|5|wide|CANCELLED|Resources|1-00:00:00||a|b|c
3|N/A|done|COMPLETED|None|1:00:00|node1|(null)
4|N/A|bad|FAILED|NonZeroExitCode|1:00:00|node1|(null)
5|N/A|held|PENDING|JobHeldUser|1:00:00||(null)
6|N/A|later|PENDING|BeginTime|1:00:00||(null)
8|N/A|ünï|RUNNING|None|59:57|node1|{"x":"ü"}
10|N/A|tight|RUNNING|None|0:58|node1|(null)
11|N/A|lim|PENDING|PartitionTimeLimit|2:00:00||(null)
12|N/A|unl|RUNNING|None|UNLIMITED|node1|(null)
13|N/A|over|TIMEOUT|TimeLimit|INVALID|node1|(null)
14|N/A|mem|FAILED|BadConstraints|1:00:00||(null)
27|N/A|nf|NODE_FAIL|NodeDown|59:57|node2|(null)
28|0|end|COMPLETING|None|58:10|node1|(null)
"""


def printed():
    return {(e.job, e.index): e for e in parse_queue(PRINTED)}


def test_every_line_of_a_real_queue_is_read():
    found = printed()
    assert len(parse_queue(PRINTED)) == len(found) == len(PRINTED.splitlines())
    ended = {(1, 1), (2, 5), (3, None), (4, None), (13, None), (14, None), (27, None)}
    assert {key for key, each in found.items() if each.state is JobState.ENDED} == ended
    # A comment is kept as it is, and none is empty.
    assert found[1, 1].comment == '{"scalable":"scalable-ab12cd-gcam","first":0}'
    comments = [found[key].comment for key in ((2, 3), (8, None), (3, None))]
    assert comments == ["a|b|c", '{"x":"ü"}', ""]
    # Time is left only for what is there.
    left = {
        (10, None): 58, (8, None): 59 * 60 + 57, (12, None): None, (2, 3): None, (3, None): None,
    }  # fmt: skip
    assert {key: found[key].left_s for key in left} == left


def test_there_are_as_many_fields_as_the_format_asks_for():
    """The line that the format itself is has all fields, each at its place."""
    fields = SQUEUE_FORMAT.split("|")
    assert fields == ["%F", "%K", "%j", "%T", "%r", "%L", "%U", "%k"]
    (element,) = parse_queue("|".join(["7", *fields[1:]]))
    assert (element.name, element.raw_state, element.comment) == ("%j", "%T", "%k")


WAITING, THERE = {JobState.WAITING}, {JobState.THERE}


@pytest.mark.parametrize(("raws", "states"), [
    ("PENDING CONFIGURING REQUEUED REQUEUE_HOLD", WAITING),
    ("RUNNING COMPLETING SUSPENDED STOPPED STAGE_OUT", THERE),
    ("RESIZING RESV_DEL_HOLD SPECIAL_EXIT", WAITING | THERE),
    ("CANCELLED COMPLETED FAILED TIMEOUT NODE_FAIL", {JobState.ENDED}),
])  # fmt: skip
def test_states(raws, states):
    text = "".join(f"7|0|x|{raw}|None|1:00|n|(null)\n" for raw in raws.split())
    assert {element.state for element in parse_queue(text)} <= states


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ((2, 3), "waiting: Resources: it waits for nodes to become free"),
        (
            (5, None),
            "waiting: JobHeldUser: it is held by its owner; release it with scontrol release",
        ),
        ((10, None), ""),
        ((1, 1), "it was cancelled (CANCELLED)"),
        # It does not name what it waited for.
        ((2, 5), "it was cancelled (CANCELLED)"),
        ((3, None), "it exited on its own (COMPLETED)"),
        ((4, None), "it failed (FAILED)"),
        ((13, None), "it reached its walltime (TIMEOUT, TimeLimit)"),
        ((14, None), "it failed (FAILED, BadConstraints)"),
        ((27, None), "its node failed (NODE_FAIL, NodeDown)"),
    ],
)
def test_why_it_waits_or_how_it_ended(key, reason):
    assert printed()[key].reason == reason


@pytest.mark.parametrize(
    "line",
    [
        "",
        "|||||||",
        "CLUSTER: testbed",
        "squeue: error: something",
        "JOBID|PARTITION|NAME",
        "ARRAY_JOB_ID|ARRAY_TASK_ID|NAME|STATE|REASON|TIME_LEFT|NODELIST|COMMENT",
        "12|0|name|RUNNING|None|1:00|node1",  # one field short
        "-1|0|name|RUNNING|None|1:00|node1|(null)",
        "12_3|3|name|RUNNING|None|1:00|node1|(null)",
    ],
)
def test_lines_that_are_not_jobs_are_passed_over(line):
    text = f"{line}\n7|0|x|RUNNING|None|1:00|n|(null)\n{line}\n"
    assert [e.job for e in parse_queue(text)] == [7]


def test_an_odd_name_of_another_job_disturbs_no_other_line():
    elements = parse_queue("7|N/A|odd | name|RUNNING|None|59:57|node1|(null)\n" + PRINTED)
    assert elements[0].job == 7
    assert elements[1:] == parse_queue(PRINTED)


@given(st.text())
def test_nothing_that_is_printed_is_an_error(text):
    for element in parse_queue(text + "\n" + "7|0|" + text):
        assert element.job >= 0


# Ends and reasons -------------------------------------------------------------------------------


def test_states_caused_from_outside():
    """A call whose worker ran out of memory may be at fault; one whose node failed is not."""
    outside = {"CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "DEADLINE", "BOOT_FAIL"}
    assert outside <= set(FROM_OUTSIDE)
    assert not {"COMPLETED", "FAILED", "OUT_OF_MEMORY"} & set(FROM_OUTSIDE)


@pytest.mark.parametrize(("state", "reason", "sentence"), [
    ("OUT_OF_MEMORY", "OutOfMemory", "more memory than it had requested (OUT_OF_MEMORY, Out"),
    ("PREEMPTED", "None", "another job took its place (PREEMPTED)"),
    ("CANCELLED by 1000", "None", "it was cancelled (CANCELLED by 1000)"),
    ("UNHEARD_OF", "(null)", "it no longer exists (UNHEARD_OF)"),
    ("", "", "it no longer exists ()"),
])  # fmt: skip
def test_ends(state, reason, sentence):
    assert sentence in explain_end(state, reason)


@pytest.mark.parametrize(("reason", "sentence"), [
    ("QOSMaxJobsPerUserLimit", "QOSMaxJobsPerUserLimit: your QOS allows no more jobs at once"),
    ("(QOSMaxJobsPerUserLimit)", "(QOSMaxJobsPerUserLimit): your QOS allows no more jobs at once"),
    (
        "ReqNodeNotAvail, UnavailableNodes:node[1-2]",
        (
            "ReqNodeNotAvail, UnavailableNodes:node[1-2]: "
            "a node that it needs is down, drained or reserved"
        ),
    ),
    ("ReqNodeNotAvail(Unavailable:node1)", "ReqNodeNotAvail(Unavailable:node1)"),
    ("PartitionConfig", "PartitionConfig"),
    ("", "Slurm has not considered it yet"),
])  # fmt: skip
def test_reasons(reason, sentence):
    """Those that we do not know are shown as Slurm wrote them."""
    assert explain_reason(reason) == sentence


# Single values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "seconds"), [
    ("0:58", 58),
    ("59:57", 3597),
    ("1:00:00", 3600),
    ("23:59:58", 86398),
    ("1-00:00:00", 86400),
    ("7-12:30:01", 7 * 86400 + 12 * 3600 + 30 * 60 + 1),
    ("0:00", 0),
    ("UNLIMITED", None),
    ("NOT_SET", None),
    ("INVALID", None),
    ("N/A", None),
    ("", None),
    ("a:b", None),
    ("-1:30", None),
])  # fmt: skip
def test_time_left(text, seconds):
    assert parse_left(text) == seconds


FAILED = "sbatch: error: Batch job submission failed: "
POLICY = (
    f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)
#: What passes, and what does not.
TRANSIENT = [
    f"{FAILED}Unable to contact slurm controller (connect failure)",
    "slurm_load_jobs error: Unable to contact slurm controller (receive failure)",
    f"{FAILED}Socket timed out on send/recv operation",
    f"{FAILED}Zero Bytes were transmitted or received",
    f"{FAILED}Transport endpoint is not connected",
    f"{FAILED}Unable to create job record, try again",
    "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
    f"{FAILED}Required partition not available (inactive or drain)",
    f"{FAILED}Required node not available (down, drained or reserved)",
    f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}",
    f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}",
    "sbatch: error: AssocGrpSubmitJobsLimit",
    "sbatch: error: QOSGrpSubmitJobsLimit",
    f"{FAILED}Slurm backup controller in standby mode",
    "slurm_load_jobs error: Controller is in standby mode, try a different controller",
    (
        'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such '
        f"file or directory (Did you start munged?)\n{FAILED}Protocol authentication error"
    ),
]
PERMANENT = [
    f"{FAILED}Invalid account or account/partition combination specified",
    f"sbatch: error: invalid partition specified: nowhere\n{FAILED}Invalid partition name specified",
    f"{FAILED}Invalid qos specification",
    f"{FAILED}Invalid feature specification",
    "sbatch: error: Invalid generic resource (gres) specification",
    (
        "sbatch: error: Memory specification can not be satisfied\n"
        f"{FAILED}Requested node configuration is not available"
    ),
    f"{FAILED}Requested reservation is invalid",
    f"{FAILED}Access denied to requested reservation",
    f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)",
    f"sbatch: error: AssocMaxWallDurationPerJobLimit\n{POLICY}",
    f"{FAILED}Invalid job array specification",
    f"{FAILED}User's group not permitted to use this partition",
    f"{FAILED}Access/permission denied",
    "sbatch: error: Invalid --time specification",
    "sbatch: unrecognized option '--no-such-option'\nTry \"sbatch --help\" for more information",
    "sbatch: error: Invalid directive found in batch script: runs/x.log",
    "exit code 1",
]


def test_refusals_that_pass_are_told_from_those_that_last():
    assert [words for words in TRANSIENT if not is_transient(words)] == []
    assert [words for words in PERMANENT if is_transient(words)] == []


CONFIG = """\
Configuration data as of 2026-11-21T00:26:30
KillWait                = 2 sec
MailProg                = /bin/true
MaxArraySize            = 1001
MaxJobCount             = 10000
SchedulerParameters     = bf_interval=2,batch_sched_delay=0

Slurmctld(primary) at vm is UP
"""


@pytest.mark.parametrize(("key", "value"), [
    ("MaxArraySize", "1001"),
    ("maxarraysize", "1001"),
    ("SchedulerParameters", "bf_interval=2,batch_sched_delay=0"),
    ("KillWait", "2 sec"),
    ("MaxArray", None),
    ("", None),
])  # fmt: skip
def test_a_value_of_the_configuration(key, value):
    assert parse_config(CONFIG, key) == value


def test_a_record():
    line = (
        "NodeName=node1 CPUTot=64 Gres=gpu:a100:4(S:0-1) OS=Linux 6.1 #1 SMP @0  "
        "RealMemory=200000 Partitions=batch,short  CfgTRES=cpu=64,mem=200000M AllocTRES= "
        "Reason=Not responding [root@2026-11-21]"
    )
    record = parse_record(line)
    assert record["NodeName"] == "node1"
    assert record["Gres"] == "gpu:a100:4(S:0-1)"
    assert record["RealMemory"] == "200000"
    assert record["CfgTRES"] == "cpu=64,mem=200000M"
    assert record["AllocTRES"] == ""
    assert "SMP" not in record
    assert parse_record("") == {}
