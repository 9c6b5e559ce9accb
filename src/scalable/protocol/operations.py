"""Names of operations, annotations and topics that several processes use."""

from __future__ import annotations

#: Operations of the streams between worker, scheduler and client: a bundle has begun; its calls
#: have ended, were given back, ran for too long, or printed text; a call has to end.
BEGUN = "scalable-begun"
OUTCOMES = "scalable-outcomes"
RETURNED = "scalable-returned"
TIMED_OUT = "scalable-timed-out"
PRINTED = "scalable-printed"
INTERRUPT = "scalable-interrupt"
#: Operations between scheduler and client: slots of each tag, and number of calls in the client.
SLOTS = "scalable-slots"
BACKLOG = "scalable-backlog"

#: Metadata by which clients see which plug-ins a scheduler has: without a plug-in's handler, a
#: scheduler that is asked for it logs a traceback.
CONTROLLER = "scalable-controller"
PROFILES = "scalable-profiles"
BUNDLES = "scalable-bundles"

#: Annotation of a task with a tag that the client could not check itself.
TAG_ANNOTATION = "scalable_tag"
#: Topic of Dask's events that tell other clients why calls wait.
WAITING_TOPIC = "scalable-waiting"
#: Key of a worker's startup information with the id of its manager.
MANAGER_KEY = "scalable_manager"
