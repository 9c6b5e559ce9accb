"""A client of a night: ``python night_client.py CLUSTER DIRECTORY ID SECONDS``.

It notes each number before it sends the call (``sent``: it must run; ``may``: it will be cancelled),
and after it has the result (``done``).
"""

import itertools
import random
import sys
import time
from concurrent.futures import CancelledError as PoolCancelledError
from contextlib import suppress

from distributed import CancelledError
from night_calls import ExpectedError, fail, kill_once, leaf, note, parent

import scalable

STUCK_S = 300.0
NUMBERS = 100_000


class Acts:
    """Ways to send calls."""

    def __init__(self, client, directory, identity, counter):
        self.client, self.directory, self.identity = client, directory, identity
        self.counter, self.chance = counter, random.Random()
        self.pools = {tag: client.pool(tag=tag) for tag in "ab"}

    def tag(self):
        return self.chance.choice("aab")

    def numbers(self, count, word="sent"):
        found = [next(self.counter) for _ in range(count)]
        note(self.directory, f"client-{self.identity}", word, *found)
        return found

    def done(self, numbers):
        note(self.directory, f"client-{self.identity}", "done", *numbers)

    def submit(self):
        numbers, tag = self.numbers(5), self.tag()
        futures = [
            self.client.submit(leaf, self.directory, n, self.chance.choice([0, 0.05, 0.5]), tag=tag)
            for n in numbers
        ]
        assert [future.result(timeout=STUCK_S) for future in futures] == numbers
        self.done(numbers)

    def map(self):
        numbers = self.numbers(20)
        futures = self.client.map(leaf, [self.directory] * 20, numbers, tag=self.tag())
        assert self.client.gather(futures) == numbers
        self.done(numbers)

    def executor_map(self):
        numbers = self.numbers(60)
        found = self.pools[self.tag()].map(leaf, [self.directory] * 60, numbers, timeout=STUCK_S)
        assert list(found) == numbers
        self.done(numbers)

    def executor_submit(self):
        numbers, pool = self.numbers(10), self.pools[self.tag()]
        futures = [pool.submit(leaf, self.directory, n, 0.1) for n in numbers]
        assert [future.result(timeout=STUCK_S) for future in futures] == numbers
        self.done(numbers)

    def graph(self):
        *numbers, last = self.numbers(8)
        graph = {f"call-{n}": (leaf, self.directory, n) for n in numbers}
        graph["sum"] = (sum, list(graph))
        graph["last"] = (leaf, self.directory, last)
        found = self.client.get(graph, [*graph], tag=self.tag())
        assert found == [*numbers, sum(numbers), last]
        self.done([*numbers, last])

    def nested(self):
        number, *others = self.numbers(4)
        future = self.client.submit(parent, self.directory, number, others, tag="a")
        assert future.result(timeout=STUCK_S) == number
        self.done([number, *others])

    def fail(self):
        one, *others = self.numbers(3)
        futures = [self.client.submit(fail, self.directory, one, tag=self.tag())]
        futures += [self.pools[self.tag()].submit(fail, self.directory, n) for n in others]
        for future in futures:
            assert isinstance(future.exception(timeout=STUCK_S), ExpectedError)
        self.done([one, *others])

    def kill(self):
        (number,) = self.numbers(1)
        sender = self.chance.choice([self.client, *self.pools.values()])
        options = {"tag": "a"} if sender is self.client else {}
        future = sender.submit(kill_once, self.directory, number, **options)
        assert future.result(timeout=STUCK_S) == number
        self.done([number])

    def cancel(self):
        numbers, pool = self.numbers(8, "may"), self.pools[self.tag()]
        one = {"tag": self.tag()}
        futures = [self.client.submit(leaf, self.directory, n, 0.2, **one) for n in numbers[:4]]
        futures += [pool.submit(leaf, self.directory, n, 0.2) for n in numbers[4:]]
        time.sleep(self.chance.choice([0, 0.01, 0.3]))
        for future in futures:
            future.cancel()
        for future in futures:
            with suppress(CancelledError, PoolCancelledError):
                future.result(timeout=STUCK_S)


WAYS = ("submit", "map", "executor_map", "executor_submit", "graph", "nested", "fail", "cancel")


def main():
    name, directory, identity, seconds = sys.argv[1:]
    end = time.monotonic() + float(seconds)
    counter = itertools.count(NUMBERS * int(identity))
    while time.monotonic() < end:
        with scalable.connect(name) as client:
            acts = Acts(client, directory, identity, counter)
            ways = random.sample(WAYS, 4) + (["kill"] if random.random() < 0.15 else [])
            for way in ways:
                getattr(acts, way)()
                time.sleep(random.uniform(0, 1.5))
            if random.random() < 0.5:
                for pool in acts.pools.values():
                    pool.shutdown()


if __name__ == "__main__":
    main()
