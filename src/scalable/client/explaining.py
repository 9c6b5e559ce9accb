"""`ExplainingClient`: a client that explains why its tasks wait, or why they have failed."""

from __future__ import annotations

from typing import Any

from distributed import Future

from scalable.client.calls.futures import CallFuture
from scalable.client.calls.whereabouts import ended_facts, waiting_facts
from scalable.client.collections import CollectionClient
from scalable.errors import ClusterError
from scalable.explaining.calls import explain_call
from scalable.explaining.explanation import Explanation, Explanations
from scalable.explaining.facts import CallFacts
from scalable.protocol.handlers import Handler
from scalable.protocol.operations import CONTROLLER


class ExplainingClient(CollectionClient):
    """A client with the method :meth:`explain`."""

    def explain(self, about: Any = None) -> Any:
        """Return why a task or a pool waits, or why a task has failed.

        Parameters
        ----------
        about
            Future of a task (including those of executors), tag of a pool, key of a task or its
            prefix, or name of a task. None for all pools and all tasks that wait.

        Returns
        -------
        Explanation or Explanations
            ``sentence``, ``advice`` and ``details`` about one task, or the explanations of pools
            and of the tasks that wait, grouped by reason. ``print`` shows both. A client that is
            asynchronous returns an awaitable object.

        Raises
        ------
        ClusterError
            When the scheduler was not started by scalable.
        """
        if isinstance(about, CallFuture):
            return self._explain_executors(about)
        if self.asynchronous:
            return self._explained(about)
        return self.sync(self._explained, about)

    async def _explained(self, about: Any) -> Explanation | Explanations:
        if isinstance(about, Future):
            if about.cancelled():
                key = str(about.key)
                return explain_call(CallFacts(key, key, "", "cancelled"))
            return (await self._asked(key=about.key)).calls[0]
        found = await self._asked(name=about)
        return found if found.pools or not found.calls else found.calls[0]

    async def _asked(self, **named: Any) -> Explanations:
        assert self.scheduler is not None
        if not await self.scheduler.get_metadata(keys=[CONTROLLER], default=False):
            raise ClusterError("the scheduler of this cluster explains no calls")
        return Explanations.from_dict(await getattr(self.scheduler, Handler.EXPLAIN)(**named))

    def _explain_executors(self, future: CallFuture) -> Explanation:
        """Return the explanation of an executor's task, part of which only the client has."""
        if future.done():
            return explain_call(ended_facts(future))
        place = self._line.wait_for(self._line.find, future)
        if future.call is None and place is None and not future.done():
            raise ClusterError("this future stands for several calls", hint="explain the pool")
        if place is not None and place.bundle is not None:
            return self._first(key=place.bundle)
        facts = waiting_facts(future, place)
        if facts.state != "backlog":
            return explain_call(facts)
        told = {"key": facts.key, "tag": facts.tag, "before": facts.before}
        return self._first(in_client=told)

    def _first(self, **named: Any) -> Explanation:
        found: Explanations = self.sync(self._asked, **named)
        return found.calls[0]
