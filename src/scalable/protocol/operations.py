"""Names of operations, annotations and topics shared by several processes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from scalable.errors import ClusterError

#: Operations in messages between workers, the scheduler and clients. A bundle has started, or its
#: tasks have finished, were returned or printed output. INTERRUPT: stop a task.
BEGUN = "scalable-begun"
OUTCOMES = "scalable-outcomes"
RETURNED = "scalable-returned"
PRINTED = "scalable-printed"
INTERRUPT = "scalable-interrupt"
#: Operation in messages to workers: addresses of workers that have left, one per line, as bytes.
LEFT = "scalable-left"
#: Operation in messages from clients with their number of cache hits.
FOUND = "scalable-found"
#: Operations in messages between the scheduler and a client: the number of slots of each tag, and
#: the slots that tasks waiting in the client need.
SLOTS = "scalable-slots"
BACKLOG = "scalable-backlog"
#: Operation in messages about code. A client sends its loaded modules. The answer names those with
#: another version in the cluster, and whether to upload files. CARRIES: entry in a scheduler's
#: facts, true if some workers lack the clients' file system.
CODE = "scalable-code"
CARRIES = "scalable-carries"
#: Entry of a scheduler's facts about itself: the versions in its image.
VERSIONS = "scalable-versions"

#: Entry of a scheduler's identity: tags by task name, from the manifest of its cluster.
TASKS = "scalable-tasks"
#: Entry of a scheduler's identity: where results are cached, and for which tasks.
REMEMBERING = "scalable-remembering"
#: Entries of a scheduler's identity: the cluster's name, and the names of tasks that are retried.
CLUSTER = "scalable-cluster"
RETRIED = "scalable-retried"

#: Metadata keys by which clients detect a scheduler's plug-ins. Clients check them first, because a
#: scheduler logs a traceback when a client calls a handler that does not exist.
CONTROLLER = "scalable-controller"
BUNDLES = "scalable-bundles"

#: Annotation with a task's tag, if the client could not check whether the tag exists.
TAG_ANNOTATION = "scalable_tag"
#: Annotation of a task that computes nothing, and only contains a result that its client has.
KNOWN_ANNOTATION = "scalable_known"
#: Annotation of a task with the code id of its client (see :mod:`scalable.protocol.code`).
CODE_ANNOTATION = "scalable_code"
#: Attribute of functions that call their first argument with their other arguments. Their tasks are
#: shown as tasks of the first argument.
CALLS_ARGUMENT = "calls_argument"
#: Metadata key of the URL of the session's storage.
STORAGE = "scalable-storage"
#: Topic under which the scheduler logs why tasks wait, for clients that subscribe to it.
WAITING_TOPIC = "scalable-waiting"
#: Topic under which the scheduler logs that the cluster stops, and the reason.
ENDING_TOPIC = "scalable-ending"
#: Topic of the event that a worker exits for a known reason, so that its end is not a crash.
LEAVING_TOPIC = "scalable-leaving"
#: Key of the manager's id in the information that a worker sends when it connects.
MANAGER_KEY = "scalable_manager"


# Version of the messages --------------------------------------------------------------------------

#: Version of the messages between clients, schedulers, managers and workers, increased by every
#: change that other releases cannot read. Its key in the facts that they report.
WIRE_VERSION, WIRE = 4, "scalable-wire"


def other_wire(told: Mapping[str, Any], there: str, here: str) -> ClusterError | None:
    """Return the error for a peer with another version of the messages, given its facts, or None.
    Dask's own schedulers and workers have no version.
    """
    theirs = told.get(WIRE)
    if theirs in (None, WIRE_VERSION):
        return None
    return ClusterError(
        f"{there} has version {theirs} of scalable's messages, and {here} has version "
        f"{WIRE_VERSION}: they cannot work together",
        hint="install one release of scalable for clients, managers, workers and images, and "
        "start the cluster again",
    )


# Bundles ------------------------------------------------------------------------------------------

#: Maximum seconds between two messages about finished tasks while a bundle runs. If the worker is
#: lost, the tasks that finished since its last message run again.
TELL_S = 0.025
#: All tasks of a bundle that has not started, in place of a position.
EVERY = -2
#: Kinds of outcome of a task: the value itself, the pickled value, an error, or a value that stays
#: on the worker.
PLAIN, PICKLED, ERROR, KEPT = range(4)
#: Identifier of this process. A worker inside the client's own process does not send printed output
#: to the client, because the output is on the screen already.
PROCESS = uuid.uuid4().hex

#: Tasks to send: for each task the index of its function, its positional arguments and its keyword
#: arguments. The indexes are None if all tasks have function 0. The keyword arguments are None if
#: no task has any.
Calls = tuple[
    Sequence[int] | None, Sequence[Sequence[Any]], Sequence[Mapping[str, Any] | None] | None
]


# Exit codes of workers ----------------------------------------------------------------------------

#: The worker used more memory than its limit.
OUT_OF_MEMORY = 71
#: A worker of the same name has started before. The worker exited without connecting.
BEGAN_BEFORE = 73
#: A program that may run once was started again.
STARTED_AGAIN = 74
