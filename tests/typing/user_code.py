"""What a user's type checker sees. ``make test`` checks this file with ``mypy --strict``."""

from collections.abc import Iterator
from typing import assert_type

from distributed import Future

import scalable
from scalable import CommandResult, ScalableClient, ScalableSession
from scalable.client.futures import CallFuture


def run(year: int, *, region: str = "north") -> str:
    return f"{year} {region}"


def workflow(client: ScalableClient) -> list[str]:
    future = client.submit(run, 2050, region="south", tag="model")
    assert_type(future, Future[str])
    assert_type(future.result(), str)
    assert_type(client.gather(future), str)
    futures = client.map(run, range(3), tag="model", slots=2)
    assert_type(futures, list[Future[str]])
    with client.executor("model") as executor:
        assert_type(executor.submit(run, 1), CallFuture[str])
        assert_type(executor.submit(run, 1).result(), str)
        assert_type(executor.map(run, [1]), Iterator[str])
        assert_type(executor.imap(run, [1]), Iterator[str])
        assert_type(client.gather([executor.submit(run, 1)]), list[str])
    program = scalable.command("./model {year}")
    assert_type(client.submit(program, year=3).result(), CommandResult)
    assert_type(client.send({"a": 1}).result(), dict[str, int])
    return client.gather(futures)


if __name__ == "__main__":
    with ScalableSession.from_yaml("scalable.yaml", target="local") as client:
        print(workflow(client))
