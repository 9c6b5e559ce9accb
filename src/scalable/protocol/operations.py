"""Operations, annotations and topics that processes name to each other."""

from __future__ import annotations

#: Operations of the streams between worker, scheduler and client: a bundle begins, its calls have
#: ended, were given back, ran for too long, have printed; a call is to end.
BEGUN = "scalable-begun"
OUTCOMES = "scalable-outcomes"
RETURNED = "scalable-returned"
TIMED_OUT = "scalable-timed-out"
PRINTED = "scalable-printed"
INTERRUPT = "scalable-interrupt"
#: Operations between scheduler and client: slots of each tag, and calls that wait in the client.
SLOTS = "scalable-slots"
BACKLOG = "scalable-backlog"

#: Metadata of a scheduler by which clients see what it has: a scheduler that lacks it would log a
#: traceback if it were asked for the handler itself.
CONTROLLER = "scalable-controller"
PROFILES = "scalable-profiles"
BUNDLES = "scalable-bundles"

#: Annotation of a task that carries the tag which the client could not check itself.
TAG_ANNOTATION = "scalable_tag"
#: Topic of Dask's events under which clients elsewhere hear why calls wait.
WAITING_TOPIC = "scalable-waiting"
#: Key of a worker's startup information under which it names its manager.
MANAGER_KEY = "scalable_manager"
