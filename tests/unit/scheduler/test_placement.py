"""Which worker a tagged call is given, on a scheduler whose workers do not exist."""

from distributed.core import Status
from distributed.scheduler import WorkerState

from scalable.scheduler.pool_scheduler import PoolScheduler


def scheduler_with(**slots):
    """Workers by name -> slots of tag "a"; 0 for a worker without the tag."""
    scheduler = PoolScheduler(dashboard=False, dashboard_address=None)
    for i, (name, amount) in enumerate(slots.items()):
        address = f"tcp://10.0.0.1:{4000 + i}"
        worker = WorkerState(
            address=address, status=Status.running, pid=i, name=name, nthreads=1,
            memory_limit=2**30, local_directory="", nanny="", server_id=name, scheduler=scheduler,
        )  # fmt: skip
        worker.resources.update({"a": amount} if amount else {})
        scheduler.workers[address] = worker
        scheduler.aliases[name] = address
        scheduler.stream_comms[address] = None
        scheduler.total_nthreads += 1
        scheduler.add_resources(address)
        scheduler.running.add(worker)
    return scheduler


def call(scheduler, key, slots=1.0, **restrictions):
    task = scheduler.new_task(key, None, "released")
    task.priority = (0, 0, 0)
    task.prefix.duration_average = 1.0
    task.resource_restrictions = {"a": slots}
    for name, value in restrictions.items():
        setattr(task, name, value)
    return task


def place(scheduler, task):
    worker = scheduler.decide_worker_non_rootish(task)
    if worker is not None:
        scheduler._add_to_processing(task, worker, stimulus_id="test")
    return None if worker is None else worker.name


async def test_many_workers_are_loaded_evenly():
    scheduler = scheduler_with(**{f"w{i}": 1 for i in range(100)})
    for i in range(300):
        place(scheduler, call(scheduler, f"k-{i}"))
    assert {len(ws.processing) for ws in scheduler.workers.values()} == {3}


async def test_idle_workers_take_turns():
    scheduler = scheduler_with(**{f"w{i}": 1 for i in range(100)})
    names = []
    for i in range(100):
        task = call(scheduler, f"k-{i}")
        names.append(place(scheduler, task))
        scheduler._exit_processing_common(task)
    assert len(set(names)) == 100


async def test_a_call_of_many_slots_goes_where_it_fits():
    scheduler = scheduler_with(small=1, large=4)
    assert [place(scheduler, call(scheduler, f"k-{i}", slots=2.0)) for i in range(3)] == 3 * [
        "large"
    ]
    assert place(scheduler, call(scheduler, "huge", slots=8.0)) is None


async def test_paused_and_leaving_workers_get_no_calls_and_new_ones_do():
    scheduler = scheduler_with(a1=1, a2=1)
    first, second = scheduler.workers.values()
    assert place(scheduler, call(scheduler, "k-0")) == "a1"
    scheduler.handle_worker_status_change(Status.paused, first, "test")
    assert place(scheduler, call(scheduler, "k-1")) == "a2"
    scheduler.handle_worker_status_change(Status.paused, second, "test")
    assert place(scheduler, call(scheduler, "k-2")) is None
    scheduler.handle_worker_status_change(Status.running, first, "test")
    assert place(scheduler, call(scheduler, "k-3")) == "a1"
    scheduler.running.discard(first)
    scheduler.remove_resources(first.address)
    assert place(scheduler, call(scheduler, "k-4")) is None


async def test_a_call_follows_its_input():
    scheduler = scheduler_with(a1=1, a2=1, b=0)
    held = scheduler.new_task("held", None, "released")
    held.nbytes = 10**9
    for name in ("a2", "b"):
        scheduler.add_replica(held, scheduler.workers[scheduler.aliases[name]])
    task = call(scheduler, "k")
    task.add_dependency(held)
    assert place(scheduler, task) == "a2"


async def test_other_restrictions_are_dasks_own_affair():
    scheduler = scheduler_with(a1=1, a2=1)
    only = {scheduler.aliases["a2"]}
    task = call(scheduler, "k", worker_restrictions=only)
    assert not scheduler.placement.takes(task)
    assert place(scheduler, task) == "a2"
