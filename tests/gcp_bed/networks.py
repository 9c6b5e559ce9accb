"""Networks, subnetworks and firewall rules: stored, and checked where instances name them."""

import re

from .catalogue import REGIONS, link
from .errors import ApiError, invalid, not_found
from .filtering import page
from .identities import PROJECT
from .operations import now


def resource(kind, number, path, body):
    return {
        "kind": f"compute#{kind}",
        "id": str(number),
        "creationTimestamp": now(),
        "selfLink": link(f"{PROJECT}/{path}"),
    } | body


class Networks:
    """The networks of the project; `default` has a subnetwork in each region."""

    def __init__(self, operations):
        self.operations = operations
        self.number = 5000
        #: Path within the project (`global/networks/default`) -> resource.
        self.found = {}
        self.reset()
        #: Returns the links of the networks and subnetworks that instances use, and of the instances.
        self.used = list

    def reset(self):
        """Have the network `default` and its rules, as in a new project."""
        self.found.clear()
        self.add_network("default", auto=True)
        for name, what, sources in (
            ("allow-internal", [{"IPProtocol": "tcp", "ports": ["0-65535"]}], ["10.128.0.0/9"]),
            ("allow-ssh", [{"IPProtocol": "tcp", "ports": ["22"]}], ["0.0.0.0/0"]),
            ("allow-icmp", [{"IPProtocol": "icmp"}], ["0.0.0.0/0"]),
        ):
            body = {"name": f"default-{name}", "allowed": what, "sourceRanges": sources}
            self.add_firewall(body | {"network": "global/networks/default", "priority": 65534})

    def next(self):
        self.number += 1
        return self.number

    def add(self, kind, path, body):
        self.found[path] = resource(kind, self.next(), path, body)
        return self.found[path]

    def add_network(self, name, auto, body=None):
        path = f"global/networks/{name}"
        network = self.add("network", path, (body or {}) | {"name": name})
        network |= {"autoCreateSubnetworks": auto, "subnetworks": []}
        if auto:
            for index, region in enumerate(REGIONS):
                self.add_subnetwork(region, name, name, f"10.{128 + 2 * index}.0.0/20")

    def add_subnetwork(self, region, name, network, addresses, body=None):
        path = f"regions/{region}/subnetworks/{name}"
        inner = (body or {}) | {
            "name": name,
            "network": link(f"{PROJECT}/global/networks/{network}"),
            "region": link(f"{PROJECT}/regions/{region}"),
            "ipCidrRange": addresses,
            "purpose": "PRIVATE",
        }
        subnetwork = self.add("subnetwork", path, inner)
        self.found[f"global/networks/{network}"]["subnetworks"].append(subnetwork["selfLink"])

    def add_firewall(self, body):
        network = self.network(body.get("network") or "global/networks/default")
        defaults = {"priority": 1000, "direction": "INGRESS", "disabled": False}
        if not (body.get("allowed") or body.get("denied")):
            text = "Required field 'resource.allowed' or 'resource.denied' not specified"
            raise ApiError(400, text, "required")
        for entry in [*(body.get("allowed") or ()), *(body.get("denied") or ())]:
            protocol = entry.get("IPProtocol", "")
            if protocol not in {"tcp", "udp", "icmp", "esp", "ah", "sctp", "ipip", "all"}:
                raise invalid("resource.allowed[0].IPProtocol", protocol, "Unknown protocol.")
            for ports in entry.get("ports") or ():
                if protocol not in {"tcp", "udp", "sctp"} or not re.fullmatch(r"\d+(-\d+)?", ports):
                    raise invalid("resource.allowed[0].ports", ports, "Invalid port range.")
        targets = body.keys() & {"sourceRanges", "sourceTags", "sourceServiceAccounts"}
        if body.get("direction", "INGRESS") == "INGRESS" and not targets:
            defaults["sourceRanges"] = ["0.0.0.0/0"]
        body = defaults | body | {"network": network["selfLink"]}
        return self.add("firewall", f"global/firewalls/{body['name']}", body)

    # Asked by instances ---------------------------------------------------------------------------

    def network(self, url, where="resource.network"):
        found = re.fullmatch(r"(?:.*/)?global/networks/([^/]+)", url)
        if not found:
            raise invalid(where, url, "The URL is malformed.")
        path = f"global/networks/{found[1]}"
        if path not in self.found:
            raise invalid(where, url, "The referenced network resource cannot be found.")
        return self.found[path]

    def interface(self, nic, region, where):
        """Return the network and the subnetwork of an instance's interface."""
        if not nic.get("subnetwork"):
            url = nic.get("network") or "global/networks/default"
            network = self.network(url, f"{where}.network")
            if not network["autoCreateSubnetworks"]:
                text = "Network interface must specify a subnet if the network resource is in custom subnet mode."
                raise invalid(where, url, text)
            return network, self.found[f"regions/{region}/subnetworks/{network['name']}"]
        url = nic["subnetwork"]
        found = re.fullmatch(r"(?:.*/)?regions/([^/]+)/subnetworks/([^/]+)", url)
        if not found:
            raise invalid(f"{where}.subnetwork", url, "The URL is malformed.")
        path = f"regions/{found[1]}/subnetworks/{found[2]}"
        if found[1] != region or path not in self.found:
            text = "The referenced subnetwork resource cannot be found."
            raise invalid(f"{where}.subnetwork", url, text)
        subnetwork = self.found[path]
        if nic.get("network") and self.network(nic["network"])["selfLink"] != subnetwork["network"]:
            text = "The subnetwork is not one of the network."
            raise invalid(f"{where}.subnetwork", url, text)
        return self.network(subnetwork["network"]), subnetwork

    # Methods --------------------------------------------------------------------------------------

    def handlers(self):
        found = {}
        for kind in ("networks", "subnetworks", "firewalls"):
            for verb in ("get", "list", "insert", "delete"):
                found[f"compute.{kind}.{verb}"] = getattr(self, verb)
        return found

    @staticmethod
    def where(call):
        """Return the kind and the path of the collection of a call."""
        kind = call.method.split(".")[1]
        scope = f"regions/{call.path['region']}" if "region" in call.path else "global"
        if "region" in call.path and call.path["region"] not in REGIONS:
            raise not_found(f"projects/{PROJECT}/{scope}")
        return kind, f"{scope}/{kind}"

    def one(self, call):
        kind, collection = self.where(call)
        path = f"{collection}/{call.path[kind.removesuffix('s')]}"
        if path not in self.found:
            raise not_found(f"projects/{PROJECT}/{path}")
        return path

    def get(self, call):
        return self.found[self.one(call)]

    def list(self, call):
        kind, collection = self.where(call)
        there = [o for path, o in self.found.items() if path.rpartition("/")[0] == collection]
        items, more = page(call.query, there)
        return {"kind": f"compute#{kind[:-1]}List", "items": items, **more}

    def insert(self, call):
        if earlier := self.operations.earlier(call):
            return earlier
        kind, collection = self.where(call)
        body = call.body
        path = f"{collection}/{body.get('name')}"
        if path in self.found:
            text = f"The resource 'projects/{PROJECT}/{path}' already exists"
            raise ApiError(409, text)
        if kind == "networks":
            auto = body.get("autoCreateSubnetworks", "IPv4Range" not in body)
            self.add_network(body["name"], auto, body)
        elif kind == "firewalls":
            self.add_firewall(body)
        else:
            for key in ("name", "network", "ipCidrRange"):
                if not body.get(key):
                    raise ApiError(400, f"Required field 'resource.{key}' not specified")
            network = self.network(body["network"])["name"]
            region = call.path["region"]
            self.add_subnetwork(region, body["name"], network, body["ipCidrRange"], body)
        return self.finished(call, "insert", path)

    def delete(self, call):
        if earlier := self.operations.earlier(call):
            return earlier
        path = self.one(call)
        own = self.found[path]["selfLink"]
        automatic = self.found[path].get("autoCreateSubnetworks")
        referring = [
            o["selfLink"]
            for p, o in self.found.items()
            if o.get("network") == own
            and ("/firewalls/" in p or ("/subnetworks/" in p and not automatic))
        ]
        referring += [user for user, links in self.used() if own in links]
        if referring:
            short = referring[0].partition("/v1/")[2]
            text = f"The resource 'projects/{PROJECT}/{path}' is already being used by '{short}'"
            raise ApiError(400, text, "resourceInUseByAnotherResource")
        removed = self.found.pop(path)
        if automatic:
            for inner in [p for p, o in self.found.items() if o.get("network") == own]:
                del self.found[inner]
        if "/subnetworks/" in path:
            network = self.network(removed["network"])
            network["subnetworks"].remove(removed["selfLink"])
        return self.finished(call, "delete", path)

    def finished(self, call, kind, path):
        """Return an operation that is done: these take no time here."""
        scope = path.rpartition("/")[0].rpartition("/")[0]
        operation = self.operations.begin(call, scope, kind, path)
        operation.finish()
        return operation.json
