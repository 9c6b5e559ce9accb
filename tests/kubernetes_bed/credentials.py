"""Certificates of the API server, and kubeconfig files."""

import base64
import datetime as dt
import ipaddress
import json
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .kinds import RBAC

READ = ["get", "list", "watch"]
WRITE = [*READ, "create", "update", "patch", "delete", "deletecollection"]
EDITED = [
    (
        ["", "policy"],
        [
            "pods",
            "pods/portforward",
            "pods/eviction",
            "pods/exec",
            "services",
            "secrets",
            "configmaps",
        ],
    ),
    ([""], ["persistentvolumeclaims", "serviceaccounts", "events", "endpoints"]),
    (["apps"], ["deployments", "replicasets", "statefulsets", "deployments/scale"]),
    (["batch"], ["jobs", "cronjobs"]),
    (["policy"], ["poddisruptionbudgets"]),
    (["coordination.k8s.io"], ["leases"]),
]
VIEWED = [
    ([""], ["pods", "pods/log", "services", "configmaps", "events", "endpoints", "resourcequotas"]),
    ([""], ["persistentvolumeclaims", "serviceaccounts", "limitranges", "namespaces"]),
    (["apps"], ["deployments", "replicasets", "statefulsets"]),
    (["batch"], ["jobs", "cronjobs"]),
]
ROLES = {
    "cluster-admin": [(["*"], ["*"], ["*"])],
    "edit": [(groups, names, WRITE) for groups, names in EDITED]
    + [(groups, names, READ) for groups, names in VIEWED],
    # As "edit", and may grant others what it may do itself.
    "admin": [(groups, names, WRITE) for groups, names in EDITED]
    + [(groups, names, READ) for groups, names in VIEWED]
    + [([RBAC], ["roles", "rolebindings"], WRITE)],
    "view": [(groups, names, READ) for groups, names in VIEWED],
    "node-reader": [
        ([""], ["nodes"], READ),
        (["storage.k8s.io", "scheduling.k8s.io"], ["*"], READ),
    ],
}
#: Users: name -> (groups, namespace -> cluster role there).
USERS = {
    "admin": (("system:masters",), {}),
    "alice": ((), {"default": "admin"}),
    "bob": ((), {"default": "edit"}),
    "viewer": ((), {"default": "view"}),
    "nobody": ((), {}),
}


def role_objects():
    """Yield (plural, namespace, body) of the roles and bindings that a new cluster has."""
    for name, rules in ROLES.items():
        listed = [{"apiGroups": g, "resources": r, "verbs": v} for g, r, v in rules]
        yield "clusterroles", "", {"metadata": {"name": name}, "rules": listed}
    for user, (_, spaces) in USERS.items():
        for namespace, role in spaces.items():
            body = binding(f"{user}-{role}", role, user)
            yield "rolebindings", namespace, body
        if user in {"alice", "bob", "viewer"}:
            yield "clusterrolebindings", "", binding(f"{user}-nodes", "node-reader", user)


def binding(name, role, user):
    return {
        "metadata": {"name": name},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": user}],
        "roleRef": {"kind": "ClusterRole", "apiGroup": RBAC, "name": role},
    }


# Certificates -------------------------------------------------------------------------------------


def certificate(name, issuer=None, addresses=()):
    """Return (key, certificate); signed by `issuer`, such a pair, or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, by = (issuer[0], issuer[1].subject) if issuer else (key, subject)
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    usage = dict.fromkeys(
        [
            "content_commitment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ],
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_encipherment=issuer is not None,
                key_cert_sign=issuer is None,
                crl_sign=issuer is None,
                **usage,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if issuer:
        signers = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = builder.add_extension(signers, critical=False)
    if addresses:
        names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        names += [x509.DNSName(n) for n in ("localhost", "kubernetes", "kubernetes.default.svc")]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return key, builder.sign(signer, hashes.SHA256())


def pem(key, cert):
    text = cert.public_bytes(serialization.Encoding.PEM)
    if key is None:
        return text
    form = serialization.PrivateFormat.PKCS8
    return text + key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def server_context(directory):
    """Return the authority's certificate and the TLS context of the server."""
    authority = certificate("kubernetes-bed")
    key, cert = certificate("kube-apiserver", authority, ["127.0.0.1"])
    path = directory / "server.pem"
    path.touch(0o600)
    path.write_bytes(pem(key, cert))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    return pem(None, authority[1]), context


# Kubeconfig ---------------------------------------------------------------------------------------


def write_kubeconfigs(directory, server, authority, tokens):
    """Write a kubeconfig for each user, `kubeconfig-NAME`; each knows the contexts of all."""
    data = base64.b64encode(authority).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "bed", "cluster": {"server": server, "certificate-authority-data": data}}
        ],
        "users": [{"name": user, "user": {"token": token}} for user, token in tokens.items()],
        "contexts": [
            {"name": user, "context": {"cluster": "bed", "user": user, "namespace": "default"}}
            for user in tokens
        ],
    }
    for user in tokens:
        path = directory / f"kubeconfig-{user}"
        path.touch(0o600)
        path.write_text(json.dumps(config | {"current-context": user}, indent=1))
