"""Names of operations, annotations and topics that several processes use."""

from __future__ import annotations

#: Operations in messages between workers, the scheduler and clients. About a bundle: it has begun;
#: its calls have ended, were given back, ran too long, or printed text. INTERRUPT: a call must end.
BEGUN = "scalable-begun"
OUTCOMES = "scalable-outcomes"
RETURNED = "scalable-returned"
TIMED_OUT = "scalable-timed-out"
PRINTED = "scalable-printed"
#: Operation in messages from clients: calls of a lost bundle have failed, and run no more.
GIVEN_UP = "scalable-given-up"
INTERRUPT = "scalable-interrupt"
#: Operation in messages to workers: addresses of workers that have left, as bytes with one in each
#: line. A worker that takes them says so under the same name when it connects.
LEFT = "scalable-left"
#: Operation in messages from clients, and entry of the facts of a scheduler that takes them: how
#: many calls there were whose remembered results a client has found.
FOUND = "scalable-found"
#: Operations in messages between the scheduler and a client: the number of slots of each tag, and
#: the slots that calls waiting in the client need.
SLOTS = "scalable-slots"
BACKLOG = "scalable-backlog"
#: Operation in messages about code: a client tells which modules it has loaded, and is told which
#: of them the cluster knew in another version, and that files have to be carried. CARRIES: entry of
#: a scheduler's facts about itself, whether there are workers without the clients' file system.
CODE = "scalable-code"
CARRIES = "scalable-carries"
#: Entry of a scheduler's facts about itself: the versions in its image.
VERSIONS = "scalable-versions"

#: Entry of a scheduler's identity: task name -> tag, from the manifest of its cluster.
TASKS = "scalable-tasks"
#: Entry of a scheduler's identity: where results are remembered, and for which tasks.
REMEMBERING = "scalable-remembering"
#: Entry of a scheduler's identity: names of the tasks whose failed calls are tried again.
RETRIED = "scalable-retried"

#: Entry of a scheduler's identity: whether it has a place for checkpoints.
CHECKPOINTS = "scalable-checkpoints"

#: Metadata keys by which clients see which plug-ins a scheduler has. Clients check them first,
#: because a scheduler logs a traceback when a client calls a handler that does not exist.
CONTROLLER = "scalable-controller"
PROFILES = "scalable-profiles"
BUNDLES = "scalable-bundles"

#: Annotation of a task that gives its tag, if the client could not check whether the tag exists.
TAG_ANNOTATION = "scalable_tag"
#: Annotation of a task that gives a result which its client has found, and computes nothing.
KNOWN_ANNOTATION = "scalable_known"
#: Annotation of a task with the code id of its client (see :mod:`scalable.protocol.code`).
CODE_ANNOTATION = "scalable_code"
#: Attribute of functions that call their first argument with the others: a call of such a function
#: is shown as a call of that argument.
CALLS_ARGUMENT = "calls_argument"
#: Metadata key of the URL of the session's storage.
STORAGE = "scalable-storage"
#: Topic under which the scheduler logs why calls wait, for clients that subscribe to it.
WAITING_TOPIC = "scalable-waiting"
#: Topic under which the scheduler logs that the cluster ends, and the reason.
ENDING_TOPIC = "scalable-ending"
#: Topic of the event that a worker ends for a known reason: its end is no crash.
LEAVING_TOPIC = "scalable-leaving"
#: Key of the manager's id in the information that a worker sends when it connects.
MANAGER_KEY = "scalable_manager"
