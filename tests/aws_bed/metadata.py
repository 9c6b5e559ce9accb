"""What machines ask about themselves: the task metadata endpoint and credentials of task roles."""

from aiohttp import web


class Metadata:
    """An HTTP server on loopback for all tasks."""

    def __init__(self, account):
        self.account = account

    async def start(self):
        """Listen; return the URL."""
        app = web.Application()
        app.router.add_get("/v2/credentials/{secret}", self.credentials)
        app.router.add_get("/{version:v[34]}/{runtime}", self.container)
        app.router.add_get("/{version:v[34]}/{runtime}/task", self.task)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    async def close(self):
        await self.runner.cleanup()

    def find(self, runtime):
        for run in self.account.fargate.every():
            for entry in run.containers:
                if entry.runtime == runtime and run.status != "STOPPED":
                    return run, entry
        raise web.HTTPNotFound

    async def credentials(self, request):
        """Give the credentials of the task's role."""
        secret = request.match_info["secret"]
        run, _ = self.find(secret.removesuffix("-credentials"))
        arn = run.order.task_role
        if not secret.endswith("-credentials") or not arn:
            raise web.HTTPNotFound
        made = self.account.identities.of_role(arn.rpartition("/")[2], run.id)
        return web.json_response(made.document(RoleArn=arn))

    async def container(self, request):
        run, entry = self.find(request.match_info["runtime"])
        return web.json_response(self.container_document(run, entry))

    async def task(self, request):
        run, _ = self.find(request.match_info["runtime"])
        document = {
            "Cluster": run.order.cluster.arn,
            "TaskARN": run.arn,
            "Family": run.order.definition.family,
            "Revision": str(run.order.definition.revision),
            "DesiredStatus": run.desired,
            "KnownStatus": run.status,
            "AvailabilityZone": run.order.zone,
            "LaunchType": "FARGATE",
            "Containers": [self.container_document(run, entry) for entry in run.containers],
        }
        return web.json_response(document)

    @staticmethod
    def container_document(run, entry):
        return {
            "DockerId": f"{run.id}-{entry.runtime}",
            "Name": entry.name,
            "Image": entry.definition["image"],
            "DesiredStatus": run.desired,
            "KnownStatus": entry.status,
            "ContainerARN": entry.arn,
            "Networks": [{"NetworkMode": "awsvpc", "IPv4Addresses": [run.address]}],
        }
