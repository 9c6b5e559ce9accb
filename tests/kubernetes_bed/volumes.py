"""Volumes and environment of a pod, from its spec and the objects that it names."""

import base64
import re
from pathlib import Path

from .admission import ACCOUNT
from .container import BED
from .quantities import amount

REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class NotYetError(Exception):
    """A container cannot be made yet; it is tried again."""

    def __init__(self, reason, message):
        super().__init__(message)
        self.reason = reason
        self.message = message


def write(directory, files):
    """Make a directory have exactly these files (name -> bytes)."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        if old.is_file() and old.name not in files:
            old.unlink()
    for name, (content, mode) in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
        path.chmod(mode)


def contents(kind, obj):
    """Return the entries of a Secret or a ConfigMap as bytes."""
    data = obj.get("data") or {}
    if kind == "secrets":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary = {key: base64.b64decode(v) for key, v in (obj.get("binaryData") or {}).items()}
    return binary | {key: value.encode() for key, value in data.items()}


class Volumes:
    """The directories behind the volumes of pods."""

    def __init__(self, store, directory, access, authority, hook):
        self.store = store
        self.directory = directory
        self.access = access
        self.authority = authority
        self.hook = hook

    def source(self, pod, folder, volume):
        """Return the directory of a volume and whether it is read-only."""
        namespace = pod["metadata"]["namespace"]
        own = folder / "volumes" / volume["name"]
        for key, plural, name_key in (
            ("secret", "secrets", "secretName"),
            ("configMap", "configmaps", "name"),
        ):
            if key in volume:
                files = self.items(namespace, plural, volume[key], name_key)
                if files is None:
                    name = volume[key][name_key]
                    text = f'MountVolume.SetUp failed for volume "{volume["name"]}" : {plural[:-1]} "{name}" not found'
                    raise NotYetError("FailedMount", text)
                write(own, files)
                return own, True
        if "projected" in volume:
            files = {}
            for part in volume["projected"]["sources"]:
                for key, plural in (("secret", "secrets"), ("configMap", "configmaps")):
                    if key in part:
                        files |= self.items(namespace, plural, part[key], "name") or {}
            write(own, files)
            return own, True
        if "hostPath" in volume:
            return self.host_path(volume), False
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]
            return self.claim(namespace, claim["claimName"]), bool(claim.get("readOnly"))
        if "emptyDir" in volume or len(volume) == 1:
            own.mkdir(parents=True, exist_ok=True)
            own.chmod(0o777)
            return own, False
        raise NotYetError("FailedMount", f"the test bed has no volumes such as {volume}")

    def items(self, namespace, plural, wanted, name_key):
        """Return name -> (bytes, mode) of a secret or config map, None if it does not exist."""
        obj = self.store.find(plural, namespace, wanted[name_key])
        if obj is None:
            return {} if wanted.get("optional") else None
        data = contents(plural, obj)
        mode = wanted.get("defaultMode", 0o644)
        if not wanted.get("items"):
            return {key: (value, mode) for key, value in data.items()}
        missing = [item["key"] for item in wanted["items"] if item["key"] not in data]
        if missing and not wanted.get("optional"):
            text = f"references non-existent {plural[:-1]} key: {missing[0]}"
            raise NotYetError("FailedMount", text)
        return {
            item["path"]: (data[item["key"]], item.get("mode", mode))
            for item in wanted["items"]
            if item["key"] in data
        }

    def host_path(self, volume):
        path, kind = Path(volume["hostPath"]["path"]), volume["hostPath"].get("type", "")
        if kind.endswith("OrCreate"):
            path.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            text = f'MountVolume.SetUp failed for volume "{volume["name"]}" : hostPath type check failed: {path} does not exist'
            raise NotYetError("FailedMount", text)
        return path

    def claim(self, namespace, name):
        """Return the directory of a claim; it stays while the test bed runs."""
        directory = self.directory / "claims" / namespace / name
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def mounts(self, pod, container, folder):
        """Return the mounts of one container, as `Container.start` takes them."""
        account = pod["spec"].get("serviceAccountName", "default")
        namespace = pod["metadata"]["namespace"]
        found = {
            f"{BED}/hook": {"source": str(self.hook), "read_only": True},
            "/etc/hosts": {"source": str(self.hosts(namespace)), "read_only": True},
        }
        if pod["spec"].get("automountServiceAccountToken", True):
            files = {
                "token": self.access.account_token(namespace, account).encode(),
                "ca.crt": self.authority,
                "namespace": namespace.encode(),
            }
            own = folder / "volumes" / "kube-api-access"
            write(own, {name: (text, 0o644) for name, text in files.items()})
            found[ACCOUNT] = {"source": str(own), "read_only": True}
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
        for mount in container.get("volumeMounts") or ():
            source, read_only = self.source(pod, folder, volumes[mount["name"]])
            if mount.get("subPath"):
                source /= mount["subPath"]
                if not source.exists():
                    source.mkdir(parents=True)
            path = "/" + mount["mountPath"].strip("/")
            found[path] = {
                "source": str(source),
                "read_only": read_only or bool(mount.get("readOnly")),
            }
        return found

    def hosts(self, namespace):
        """Return the file that all pods of a namespace see as /etc/hosts."""
        path = self.directory / "hosts" / namespace
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    # Environment ----------------------------------------------------------------------------------

    def environment(self, pod, container, base):
        """Return the environment of a container: `base`, then what its spec says."""
        namespace = pod["metadata"]["namespace"]
        found = dict(base)
        for entry in container.get("envFrom") or ():
            for key, plural in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
                if key in entry:
                    data = self.referred(namespace, plural, entry[key]) or {}
                    prefix = entry.get("prefix", "")
                    found |= {f"{prefix}{name}": text.decode() for name, text in data.items()}
        for entry in container.get("env") or ():
            if "valueFrom" in entry:
                value = self.value_from(pod, container, entry["valueFrom"], namespace)
                if value is not None:
                    found[entry["name"]] = value
            else:
                found[entry["name"]] = expand(entry.get("value", ""), found)
        return found

    def referred(self, namespace, plural, reference):
        obj = self.store.find(plural, namespace, reference["name"])
        if obj is not None:
            return contents(plural, obj)
        if reference.get("optional"):
            return None
        text = f'{plural[:-1]} "{reference["name"]}" not found'
        raise NotYetError("CreateContainerConfigError", text)

    def value_from(self, pod, container, source, namespace):
        for key, plural in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
            if key in source:
                reference = source[key]
                data = self.referred(namespace, plural, reference)
                if data is not None and reference["key"] in data:
                    return data[reference["key"]].decode()
                if reference.get("optional"):
                    return None
                text = f"couldn't find key {reference['key']} in {plural[:-1]} {namespace}/{reference['name']}"
                raise NotYetError("CreateContainerConfigError", text)
        if "fieldRef" in source:
            return field(pod, source["fieldRef"]["fieldPath"])
        reference = source["resourceFieldRef"]
        where, _, name = reference["resource"].partition(".")
        value = amount((container.get("resources") or {}).get(where, {}).get(name, 0))
        return str(int(-(-value // amount(reference.get("divisor") or 1))))


def field(pod, path):
    """Return the text at a path such as `metadata.labels['a']`."""
    found = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if found:
        return (pod["metadata"].get(found[1]) or {}).get(found[2], "")
    value = pod
    for part in path.split("."):
        value = (value or {}).get(part)
    return "" if value is None else str(value)


def expand(text, environment):
    """Replace `$(NAME)` by its value; unknown names stay, `$$` is a dollar."""

    def value(found):
        return "$" if found[0] == "$$" else environment.get(found[1], found[0])

    return REFERENCE.sub(value, text)
