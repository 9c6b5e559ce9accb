"""Failed calls of a run that are run again alone, with the code as it is now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable.caching.run_calls import RunCall, failed_calls
from scalable.caching.run_results import RunResults, results_of
from scalable.errors import RunError
from scalable.session.request import Request
from scalable.session.script_module import code_of_workflow

if TYPE_CHECKING:
    from scalable.spec import DeploymentSpec, Plan

#: Largest number of characters of the error of a call.
_REASON = 200


@dataclass(frozen=True)
class RerunCall:
    """A failed call, and what became of it.

    Attributes
    ----------
    call
        The call as text.
    function
        Name of its function, with the module.
    was
        The error with which it failed.
    now
        ``succeeded``, or why it did not.
    succeeded
        Whether it succeeded.
    """

    call: str
    function: str
    was: str
    now: str
    succeeded: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return asdict(self)


class FailedCalls:
    """The failed calls of a run whose results were kept.

    Parameters
    ----------
    run
        Directory of the run.

    Attributes
    ----------
    calls
        The failed calls that have not succeeded since.

    Raises
    ------
    RunError
        When no calls of the run were noted.
    """

    def __init__(self, run: Path) -> None:
        self._run = run.absolute()
        self._results: RunResults = results_of(str(self._run))
        noted = list(self._results.log.calls())
        if not noted:
            raise RunError(
                f"the calls of {run.name} were not kept",
                hint="write `keep_results: true` in `project:` of the manifest, and run the "
                "workflow again",
            )
        self.calls: Sequence[RunCall] = failed_calls(noted)

    def run_again(self, request: Request, plan: Plan, script: Path) -> list[RerunCall]:
        """Run the failed calls on a cluster of their own, and return what became of each.

        Results are kept with those of the run.

        Parameters
        ----------
        request
            Manifest and target.
        plan
            Numbers of workers.
        script
            The workflow's script. It is loaded, and not run, if calls need what it defines.

        Raises
        ------
        RunError
            When the script is needed, and does more than define when it is loaded.
        """
        names = [call.arguments for call in self.calls if call.arguments]
        needs_script = any(self._results.arguments.needs_script(name) for name in names)
        with code_of_workflow(script, needs_script=needs_script):
            loaded = [(call, *self._loaded(call)) for call in self.calls]
            if not any(given for _, given, _ in loaded):
                return [_not_run(call, reason) for call, _, reason in loaded]
            return self._run_on(request, plan, loaded)

    def _loaded(self, call: RunCall) -> tuple[Any, str]:
        """Return function and arguments of a call; or None, and why they cannot be loaded."""
        if not call.arguments:
            return None, "its arguments were not kept"
        try:
            return self._results.arguments.call(call.arguments), ""
        except RunError as error:
            return None, str(error)

    def _run_on(
        self, request: Request, plan: Plan, loaded: Sequence[tuple[RunCall, Any, str]]
    ) -> list[RerunCall]:
        from scalable.session.session import ScalableSession

        session = ScalableSession(request)
        client = session.start(plan)
        try:
            futures = [
                given and self._sent(client, request.spec, call, given) for call, given, _ in loaded
            ]
            return [
                _not_run(call, reason) if given is None else _ended(call, given, future)
                for (call, given, reason), future in zip(loaded, futures, strict=True)
            ]
        finally:
            session.close()

    def _sent(self, client: Any, spec: DeploymentSpec, call: RunCall, given: Any) -> Any:
        from scalable.caching.calls import Purpose
        from scalable.caching.resumable import ResumableFunction
        from scalable.client.resuming import ResumableCalls
        from scalable.spec.remembering import Keeping, Remembering

        function, args, kwargs = given
        remembering = Remembering.of(spec, Keeping(str(self._run)))
        resumable = ResumableCalls(lambda: remembering, lambda: False)
        sent = resumable.function(function, Purpose(task=call.task, tag=call.tag), {})
        if isinstance(sent, ResumableFunction):
            sent = replace(sent, settles=call.arguments)
        tag, task = call.tag or None, call.task or None
        return client.submit(sent, *args, tag=tag, task=task, cache=False, **kwargs)


def _shown(call: RunCall, given: Any) -> str:
    from scalable.protocol.shown_values import shown_arguments

    name = call.function.rpartition(".")[2]
    return name if given is None else name + shown_arguments(given[1], given[2])


def _not_run(call: RunCall, reason: str) -> RerunCall:
    return RerunCall(_shown(call, None), call.function, call.reason, f"not run: {reason}", False)


def _ended(call: RunCall, given: Any, future: Any) -> RerunCall:
    shown = _shown(call, given)
    error = future.exception()
    if error is None:
        return RerunCall(shown, call.function, call.reason, "succeeded", True)
    reason = f"{type(error).__name__}: {error}".partition("\n")[0][:_REASON]
    return RerunCall(shown, call.function, call.reason, f"failed: {reason}", False)
