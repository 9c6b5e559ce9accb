"""Decorators of tests, from functions that play a coroutine function with things of their own."""

import functools
import inspect


def decorator_of(play, count):
    """Return ``play``, as a decorator too: the first parameters of a test are the things played with.

    ``play(scenario, **options)`` awaits ``scenario`` with ``count`` things; the other parameters of
    a test are fixtures.
    """

    def decorate(scenario=None, **options):
        if scenario is not None:
            return play(scenario, **options)

        def wrap(test):
            @functools.wraps(test)
            def run(**fixtures):
                play(lambda *things: test(*things, **fixtures), **options)

            parameters = list(inspect.signature(test).parameters.values())[count:]
            run.__signature__ = inspect.Signature(parameters)
            return run

        return wrap

    return decorate
