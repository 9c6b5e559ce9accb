"""Names of operations, annotations and topics that several processes use."""

from __future__ import annotations

#: Operations in messages between workers, the scheduler and clients. A bundle has started, or its
#: tasks have finished, were returned, ran too long or printed output. INTERRUPT: stop a task.
BEGUN = "scalable-begun"
OUTCOMES = "scalable-outcomes"
RETURNED = "scalable-returned"
TIMED_OUT = "scalable-timed-out"
PRINTED = "scalable-printed"
#: Operation in messages from clients: tasks of a lost bundle have failed, and are not retried.
GIVEN_UP = "scalable-given-up"
INTERRUPT = "scalable-interrupt"
#: Operation in messages to workers: other priorities of tasks that have not started. A worker that
#: supports them reports the same name when it connects.
PRIORITIES = "scalable-priorities"
#: Operation in messages to workers: addresses of workers that have left, as bytes with one in each
#: line. A worker that supports them reports the same name when it connects.
LEFT = "scalable-left"
#: Operation in messages from clients, and entry of the facts of a scheduler that supports it: the
#: number of cache hits of a client.
FOUND = "scalable-found"
#: Operations in messages between the scheduler and a client: the number of slots of each tag, and
#: the slots that tasks waiting in the client need.
SLOTS = "scalable-slots"
BACKLOG = "scalable-backlog"
#: Operation in messages about code: a client sends the modules that it has loaded. The answer has
#: those with another version in the cluster, and whether files must be uploaded. CARRIES: entry of
#: a scheduler's facts, whether there are workers without the clients' file system.
CODE = "scalable-code"
CARRIES = "scalable-carries"
#: Entry of a scheduler's facts about itself: the versions in its image.
VERSIONS = "scalable-versions"

#: Entry of a scheduler's identity: tags by task name, from the manifest of its cluster.
TASKS = "scalable-tasks"
#: Entry of a scheduler's identity: where results are cached, and for which tasks.
REMEMBERING = "scalable-remembering"
#: Entry of a scheduler's identity: names of the tasks that are retried.
RETRIED = "scalable-retried"

#: Entry of a scheduler's identity: whether it has a location for checkpoints.
CHECKPOINTS = "scalable-checkpoints"

#: Metadata keys by which clients detect a scheduler's plug-ins. Clients check them first, because a
#: scheduler logs a traceback when a client calls a handler that does not exist.
CONTROLLER = "scalable-controller"
PROFILES = "scalable-profiles"
BUNDLES = "scalable-bundles"

#: Annotation with a task's tag, if the client could not check whether the tag exists.
TAG_ANNOTATION = "scalable_tag"
#: Annotation of a task that computes nothing, and only contains a result that its client has.
KNOWN_ANNOTATION = "scalable_known"
#: Annotation of a task with the code id of its client (see :mod:`scalable.protocol.code`).
CODE_ANNOTATION = "scalable_code"
#: Attribute of functions that call their first argument with the others: a task of such a function
#: is shown as a task of that argument.
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
