"""Errors of calls keep their text on their way to the client."""

import pytest

from scalable.protocol.messages import dump_error, load_error


def raised(function):
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - whatever it raises is the point
        return error
    return None


class OwnSyntaxError(SyntaxError):
    def __init__(self, line):
        super().__init__(f"no sense in line {line}")


@pytest.mark.parametrize(
    "error",
    [
        raised(lambda: compile("def oops(:\n", "/fields/yields.py", "exec")),
        raised(b"\xff".decode),
        raised("\ud800".encode),
        raised(lambda: open("/nowhere")),  # noqa: SIM115
        ModuleNotFoundError("No module named 'x'", name="x"),
        OwnSyntaxError(3),
        KeyError("a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_and_its_causes_keep_their_text(error):
    outer = RuntimeError("outer")
    outer.__cause__ = ExceptionGroup("group", [error])
    for made in (
        load_error(dump_error(error)),
        load_error(dump_error(outer)).__cause__.exceptions[0],
    ):
        assert type(made) is type(error)
        assert str(made) == str(error)
