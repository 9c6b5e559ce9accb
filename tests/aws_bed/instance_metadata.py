"""The metadata service of one instance."""

import json
import secrets
import time

from aiohttp import web

from .identities import ACCOUNT

TOKEN, TTL = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"
LONGEST = 21600


class InstanceMetadata:
    """An HTTP server on the instance's own address."""

    def __init__(self, run):
        self.run = run
        self.instance = run.instance
        self.tokens = {}
        self.runner = None
        self.given = None

    async def start(self):
        """Listen; return the URL."""
        app = web.Application()
        app.router.add_put("/latest/api/token", self.token)
        app.router.add_get("/latest/{path:.*}", self.get)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, self.run.address, 0)
        await site.start()
        return f"http://{self.run.address}:{site._server.sockets[0].getsockname()[1]}"

    async def close(self):
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def token(self, request):
        """Give a token that the other paths ask for."""
        text = request.headers.get(TTL, "")
        if not text.isdigit() or not 1 <= int(text) <= LONGEST:
            raise web.HTTPBadRequest
        if "X-Forwarded-For" in request.headers:
            raise web.HTTPForbidden
        token = secrets.token_urlsafe(42)
        self.tokens[token] = time.monotonic() + int(text)
        return web.Response(text=token, headers={TTL: text})

    async def get(self, request):
        token = request.headers.get(TOKEN)
        required = self.instance.metadata_options.http_tokens == "required"
        if token is None and required:
            raise web.HTTPUnauthorized
        if token is not None and self.tokens.get(token, 0) < time.monotonic():
            raise web.HTTPUnauthorized
        found = self.find(request.match_info["path"].strip("/"))
        if found is None:
            raise web.HTTPNotFound
        if isinstance(found, bytes):
            return web.Response(body=found)
        return web.Response(text=found)

    def find(self, path):
        """Return what is at a path under `/latest/`, None if nothing is."""
        if path == "user-data":
            return self.run.order.user_data or None
        if path == "dynamic/instance-identity/document":
            return self.identity()
        first, _, rest = path.partition("/")
        if first != "meta-data":
            return None
        if rest.startswith("iam/security-credentials/"):
            return self.credentials(rest.rpartition("/")[2])
        values = self.values()
        if rest in values:
            return values[rest]
        prefix = f"{rest}/" if rest else ""
        names = {}
        for key in values:
            if key.startswith(prefix):
                name, slash, _ = key.removeprefix(prefix).partition("/")
                names.setdefault(name, slash)
        return "\n".join(f"{name}{slash}" for name, slash in sorted(names.items())) or None

    def values(self):
        """Return path -> text of all that is plain."""
        instance, order = self.instance, self.run.order
        zone = instance.placement.availability_zone
        found = {
            "ami-id": instance.image_id,
            "hostname": instance.private_dns_name,
            "instance-action": "none",
            "instance-id": instance.id,
            "instance-life-cycle": "spot" if order.spot else "on-demand",
            "instance-type": instance.instance_type,
            "local-hostname": instance.private_dns_name,
            "local-ipv4": self.run.address,
            "mac": instance.nics[0].mac_address,
            "placement/availability-zone": zone,
            "placement/region": self.run.region,
            "services/domain": "amazonaws.com",
        }
        if instance.public_ip:
            found |= {
                "public-ipv4": instance.public_ip,
                "public-hostname": instance.public_dns_name,
            }
        if instance.metadata_options.instance_metadata_tags == "enabled":
            tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
            found |= {f"tags/instance/{k}": v for k, v in tags.items() if not k.startswith("aws:")}
        if order.role:
            profile = {
                "Code": "Success",
                "InstanceProfileArn": order.profile_arn,
                "InstanceProfileId": "AIPABED",
            }
            found["iam/info"] = json.dumps(profile)
            found[f"iam/security-credentials/{order.role_name}"] = ""
        notices = self.run.notices
        if "action" in notices:
            found["spot/instance-action"] = json.dumps(notices["action"])
            found["spot/termination-time"] = notices["action"]["time"]
        if "rebalance" in notices:
            found["events/recommendations/rebalance"] = json.dumps(notices["rebalance"])
        return found

    def credentials(self, name):
        """Return credentials of the instance's role: the same until they are about to end."""
        order = self.run.order
        if not order.role or name != order.role_name:
            return None
        identities = self.run.ec2.account.identities
        left = 0.0 if self.given is None else self.given.ends - time.time()
        if left < min(300, identities.validity / 2):
            self.given = identities.of_role(order.role_name, self.instance.id)
        return json.dumps(self.given.document(Code="Success", Type="AWS-HMAC"))

    def identity(self):
        instance = self.instance
        document = {
            "accountId": ACCOUNT,
            "availabilityZone": instance.placement.availability_zone,
            "imageId": instance.image_id,
            "instanceId": instance.id,
            "instanceType": instance.instance_type,
            "privateIp": self.run.address,
            "region": self.run.region,
        }
        return json.dumps(document)
