"""Jobs that somebody else cancels: they are replaced however often, which is no crash loop."""

from scalable import SlurmCluster

#: Starts that end a pool in this test, and one more than that.
CRASH_LOOP_STARTS = 3
OFTEN = CRASH_LOOP_STARTS + 1


def test_jobs_that_somebody_cancels_are_replaced(on_slurm, eventually, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for module in ("units", "reconciler"):
        monkeypatch.setattr(f"scalable.manager.{module}.CRASH_LOOP_STARTS", CRASH_LOOP_STARTS)
    for name in ("UNSEEN_GRACE_S", "SLOWEST_POLL_S"):
        monkeypatch.setattr(f"scalable.providers.slurm.launcher.{name}", 1.0)
    options = {"queue": "batch", "interface": "lo", "directives": ["--hold"]}
    with SlurmCluster(**options) as cluster:
        cluster.add_container(tag="a")
        cluster.add_workers(n=OFTEN, tag="a")
        eventually(lambda: "JobHeldUser" in (cluster.pools["a"].waiting or ""))
        before = {cluster.job_of(name) for name in cluster.manager.inventory.names("a")}
        on_slurm.cancel_jobs()

        def replaced():
            units = cluster.manager.inventory.existing()
            fresh = {cluster.job_of(name) for name in units} - before - {None}
            return cluster.pools["a"].reason or len(fresh) == OFTEN

        assert eventually(replaced) is True
