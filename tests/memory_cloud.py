"""A cloud in memory: machines change their state when a test says so."""

from dataclasses import dataclass, field, replace

from scalable.errors import ProviderError
from scalable.providers.remote.cloud import NAME, Machine, MachineState, Refusal, StoredFiles


@dataclass
class MemoryCloud:
    user: str = "ann"
    spot_share: float = 0.0
    per_machine: int = 1
    room: int = 10**6
    spot_room: int = 10**6
    things: dict = field(default_factory=dict)
    texts: dict = field(default_factory=dict)
    prepared: set = field(default_factory=set)
    calls: list = field(default_factory=list)
    stopped: list = field(default_factory=list)
    faults: list = field(default_factory=list)
    left: dict = field(default_factory=dict)
    ends_at_once: bool = True

    def _called(self, name):
        self.calls.append(name)
        if self.faults and self.faults[0][0] == name:
            raise self.faults.pop(0)[1]

    def units_on(self, component):
        return self.per_machine

    async def owner(self):
        return self.user

    async def prepare(self, cluster_id, marks):
        self._called("prepare")
        self.prepared.add(cluster_id)

    async def run(self, requests):
        self._called("run")
        answers = {}
        for request in requests:
            if request.name in self.things:
                answers[request.name] = self.things[request.name]
                continue
            there = [m for m in self.things.values() if m.state is not MachineState.ENDED]
            spot = [m for m in there if m.spot]
            if len(there) >= self.room or (request.spot and len(spot) >= self.spot_room):
                answers[request.name] = Refusal("no capacity in zones a and b")
                continue
            answers[request.name] = self.things[request.name] = Machine(
                id=f"m-{len(self.things)}",
                marks=dict(request.marks),
                units=request.units,
                state=MachineState.PENDING,
                spot=request.spot,
            )
        if self.faults and self.faults[0][0] == "answer":
            raise self.faults.pop(0)[1]
        return answers

    async def machines(self, marks):
        self._called("machines")
        return [m for m in self.things.values() if marks.items() <= m.marks.items()]

    def become(self, state, *names, **changes):
        for name in names or list(self.things):
            self.things[name] = replace(self.things[name], state=state, **changes)

    async def stop(self, machines):
        self._called("stop")
        state = MachineState.ENDED if self.ends_at_once else MachineState.ENDING
        for machine in machines:
            self.become(state, machine.marks[NAME], exit_code=0)

    async def stop_units(self, machine, units):
        self.stopped += units

    async def put_files(self, name, marks, files):
        self._called("put_files")
        self.texts[name] = StoredFiles(name, dict(marks), dict(files))

    async def files(self, marks):
        return [its for its in self.texts.values() if marks.items() <= its.marks.items()]

    async def delete_files(self, marks):
        gone = [its.name for its in await self.files(marks)]
        for name in gone:
            del self.texts[name]
        return gone

    async def clean(self, marks):
        self._called("clean")
        mine = self.prepared & {marks["scalable-cluster"]}
        self.prepared -= mine
        return [f"network of {cluster_id}" for cluster_id in mine]

    async def leftovers(self, marks):
        return dict(self.left)

    async def output(self, machine, since):
        return f"output of {machine.id}", "1"

    async def close(self):
        pass


def transient(words="throttled"):
    return ProviderError(words, transient=True)
