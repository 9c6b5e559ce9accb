"""Streams that outlive their carriers: each byte once, in its order, whatever breaks when."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.protocol.streams import Hello, Stream, StreamError, new_stream_id

WINDOW = 64


class Side:
    """One end with the program beside it, and the pipe of the carrier that leads away from it."""

    def __init__(self, seed, far):
        self.stream = Stream(WINDOW, far=far)
        self.source = itertools.count(seed)
        self.written = bytearray()
        self.waiting = bytearray()
        self.read = bytearray()
        self.pipe = bytearray()

    def write(self, count):
        count = min(count, self.stream.room)
        if not self.stream.ended_here and count > 0:
            data = bytes(next(self.source) % 251 for _ in range(count))
            self.written += data
            self.stream.write(data)

    def send(self, idle=False):
        for piece in self.stream.take(idle=idle):
            self.pipe += piece

    def feed(self, data):
        for piece in self.stream.feed(data):
            self.waiting += piece
        assert len(self.waiting) <= WINDOW

    def deliver(self, count):
        part = self.waiting[:count]
        del self.waiting[:count]
        self.read += part
        self.stream.delivered(len(part))


class Pair:
    """Both ends, and the carrier between them."""

    def __init__(self):
        self.sides = Side(0, far=False), Side(100, far=True)
        self.carried = False
        self.connect()

    def connect(self, lost=None):
        """Connect; a hello or an answer may be lost on the way."""
        near, far = self.sides
        near.pipe.clear()
        far.pipe.clear()
        hello = Hello(bytes(16), False, *near.stream.greeting())
        if lost == "hello":
            return
        decoded = Hello.decoded(hello.encoded())
        answer = far.stream.greeting()
        far.stream.attach(decoded.received, decoded.limit)
        if lost == "answer":
            far.send()  # and what was sent is lost as well
            far.pipe.clear()
            return
        near.stream.attach(*answer)
        self.carried = True

    def move(self, index, count):
        """Let some bytes of the carrier arrive."""
        side, other = self.sides[index], self.sides[1 - index]
        part = bytes(side.pipe[:count])
        del side.pipe[:count]
        other.feed(part)

    @property
    def over(self):
        """Whether the far end is, and the near end is or will learn that the stream is unknown."""
        near, far = (side.stream for side in self.sides)
        return far.over and (near.over or not self.carried)

    def settle(self):
        """Move everything until nothing is left to move."""
        if not self.carried and not self.sides[1].stream.over:
            self.connect()
        for _ in range(200):
            for index, side in enumerate(self.sides if self.carried else ()):
                side.send(idle=True)
                self.move(index, len(side.pipe))
                self.sides[1 - index].deliver(WINDOW)
            if self.over:
                return


index = st.integers(0, 1)
count = st.integers(1, 100)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), index, count),
        st.tuples(st.just("send"), index, st.booleans()),
        st.tuples(st.just("flow"), index, count),
        st.tuples(st.just("move"), index, count),
        st.tuples(st.just("deliver"), index, count),
        st.tuples(st.just("end"), index, st.none()),
        st.tuples(st.just("cut"), st.none(), st.sampled_from([None, "hello", "answer"])),
    ),
    max_size=120,
)


@given(steps)
def test_each_byte_arrives_once_and_in_its_order(steps):
    pair = Pair()
    for verb, side, argument in steps:
        if verb == "cut":
            pair.carried = False
            if not pair.sides[1].stream.over:
                pair.connect(argument)
        elif verb == "write":
            pair.sides[side].write(argument)
        elif verb == "end":
            pair.sides[side].stream.end()
        elif verb == "deliver":
            pair.sides[side].deliver(argument)
        elif pair.carried and verb == "send":
            pair.sides[side].send(argument)
        elif pair.carried and verb == "move":
            pair.move(side, argument)
        elif pair.carried and verb == "flow":
            pair.sides[side].write(argument)
            pair.sides[side].send()
            pair.move(side, argument)
            pair.sides[1 - side].deliver(argument)
    for side in pair.sides:
        side.stream.end()
    pair.settle()
    near, far = pair.sides
    assert near.read == far.written
    assert far.read == near.written
    assert pair.over


@pytest.mark.parametrize("arrived", [0, 3, 5, 12, 15, 20, 30])
def test_what_has_arrived_is_not_sent_again_on_the_next_carrier(arrived):
    pair = Pair()
    near, far = pair.sides
    for _ in range(3):
        near.write(10)
        near.send()
    pair.move(0, arrived)
    pair.connect()
    pair.settle()
    assert far.read == near.written


def test_an_end_that_does_not_deliver_stops_the_other():
    pair = Pair()
    near, far = pair.sides
    for _ in range(20):
        near.write(WINDOW)
        near.send()
        pair.move(0, len(near.pipe))
        far.send(idle=True)
        pair.move(1, len(far.pipe))
    # A window is there, and one more waits here.
    assert len(near.written) == 2 * WINDOW
    assert len(far.waiting) == WINDOW
    far.deliver(WINDOW)
    pair.settle()
    assert far.read == near.written


def test_breaking_off_reaches_the_other_end_on_the_next_carrier():
    pair = Pair()
    near, far = pair.sides
    near.write(10)
    near.send()
    pair.carried = False
    near.stream.reset()
    assert not near.stream.over
    pair.settle()
    assert near.stream.over
    assert far.stream.was_reset
    assert far.stream.over


@pytest.mark.parametrize("received", [3, 11])
def test_an_end_that_claims_impossible_numbers_is_an_error(received):
    pair = Pair()
    near, far = pair.sides
    near.write(10)
    near.send()
    pair.move(0, 8)
    far.send(idle=True)
    pair.move(0, 7)
    far.deliver(10)
    far.send(idle=True)
    pair.move(1, len(far.pipe))
    assert near.stream.confirmed == 10
    with pytest.raises(StreamError, match=f"has received {received} bytes"):
        near.stream.attach(received, 100)


def test_more_data_than_is_allowed_is_an_error():
    near, far = Stream(1000), Stream(10)
    near.attach(0, 1000)  # not what the far end has said
    near.write(bytes(11))
    sent = b"".join(near.take())
    with pytest.raises(StreamError, match="more data than allowed"):
        far.feed(sent)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\x00"])
def test_bytes_of_another_protocol_are_an_error(data):
    with pytest.raises(StreamError):
        Stream().feed(data)
    with pytest.raises(StreamError):
        Hello.decoded(data.ljust(37, b"\0"))


def test_ids_are_not_repeated():
    assert len({new_stream_id() for _ in range(1000)}) == 1000
