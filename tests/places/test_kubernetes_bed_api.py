"""The API server of the Kubernetes test bed refuses and troubles as a real one does."""

import asyncio

import pytest

pytest.importorskip("kubernetes_asyncio")
from kubernetes_asyncio import client, watch
from pods import SOON, core, holds, on_bed, pod, secret

Refused = client.ApiException


def settings(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@on_bed
async def test_bodies_that_kubernetes_would_refuse_are_refused(bed, api):
    for container, words in (
        ({"volumeMounts": [{"name": "no", "mountPath": "/x"}]}, "Not found: 'no'"),
        ({"imagee": "x"}, "imagee"),
        ({"resources": {"limits": {"memory": "4 GB"}}}, "quantities must match"),
    ):
        with pytest.raises(Refused, match=rf"422[\s\S]*{words}"):
            await api.create_namespaced_pod("default", pod("wrong", "pass", container=container))
    with pytest.raises(Refused, match=r"422[\s\S]*no label value"):
        await api.create_namespaced_pod("default", pod("wrong", "pass", {"a": "b c"}))


@on_bed
async def test_roles_decide_who_may_do_what(bed, alice):
    async with core(bed, "viewer") as api:
        await api.list_namespaced_pod("default")
        with pytest.raises(Refused, match=r'403[\s\S]*cannot create resource \\"pods\\"'):
            await api.create_namespaced_pod("default", pod("mine", "pass"))
    asked = {"namespace": "default", "verb": "create", "resource": "pods"}
    body = {"spec": {"resourceAttributes": asked}}
    allowed = {}
    for user in ("alice", "viewer", "nobody"):
        async with core(bed, user) as api:
            reviews = client.AuthorizationV1Api(api.api_client)
            review = await reviews.create_self_subject_access_review(body)
            allowed[user] = review.status.allowed
    assert allowed == {"alice": True, "viewer": False, "nobody": False}


@on_bed
async def test_a_change_of_an_old_state_is_a_conflict(bed, api):
    first = await api.create_namespaced_config_map("default", settings("plan", a="1"))
    await api.patch_namespaced_config_map("plan", "default", {"data": {"b": "2"}})
    first.data = {"a": "3"}
    with pytest.raises(Refused, match="409"):
        await api.replace_namespaced_config_map("plan", "default", first)
    found = await api.read_namespaced_config_map("plan", "default")
    assert found.data == {"a": "1", "b": "2"}
    with pytest.raises(Refused, match="AlreadyExists"):
        await api.create_namespaced_config_map("default", settings("plan"))


@on_bed
async def test_a_finalizer_holds_an_object_and_its_dependents_go_with_it(bed, api):
    body = settings("owner")
    body["metadata"]["finalizers"] = ["example.org/wait"]
    owner = await api.create_namespaced_config_map("default", body)
    body = settings("dependent")
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner.metadata.uid,
    }
    body["metadata"]["ownerReferences"] = [reference]
    await api.create_namespaced_config_map("default", body)
    await api.delete_namespaced_config_map("owner", "default")
    assert (await api.read_namespaced_config_map("owner", "default")).metadata.deletion_timestamp
    await api.read_namespaced_config_map("dependent", "default")
    free = [{"op": "remove", "path": "/metadata/finalizers"}]
    await api.patch_namespaced_config_map(
        "owner", "default", free, _content_type="application/json-patch+json"
    )

    async def gone():
        found = (await api.list_namespaced_config_map("default")).items
        return not {"owner", "dependent"} & {item.metadata.name for item in found}

    await holds(gone)


@on_bed
async def test_custom_resources_have_the_schema_of_their_definition(bed, alice):
    size = {"type": "object", "properties": {"size": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"spec": size}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "shoes", "singular": "shoe", "kind": "Shoe"}
    spec = {"group": "example.org", "scope": "Namespaced", "names": names, "versions": [version]}
    definition = {"metadata": {"name": "shoes.example.org"}, "spec": spec}
    async with core(bed, "admin") as api:
        definitions = client.ApiextensionsV1Api(api.api_client)
        await definitions.create_custom_resource_definition(definition)
        shoes = client.CustomObjectsApi(api.api_client)
        place = "example.org", "v1", "default", "shoes"
        body = {"apiVersion": "example.org/v1", "kind": "Shoe", "metadata": {"name": "left"}}
        await shoes.create_namespaced_custom_object(*place, body | {"spec": {"size": 42}})
        found = await shoes.list_namespaced_custom_object(*place)
        assert [shoe["spec"] for shoe in found["items"]] == [{"size": 42}]
        with pytest.raises(Refused, match="422"):
            await shoes.create_namespaced_custom_object(*place, body | {"spec": {"size": "big"}})
        await definitions.delete_custom_resource_definition("shoes.example.org")
        with pytest.raises(Refused, match="404"):
            await shoes.list_namespaced_custom_object(*place)


@on_bed
async def test_a_full_quota_refuses_pods(bed, alice):
    bed.add_namespace("small")
    async with core(bed, "admin") as api:
        body = {
            "metadata": {"name": "limit"},
            "spec": {"hard": {"pods": "1", "limits.memory": "1Gi"}},
        }
        await api.create_namespaced_resource_quota("small", body)
        container = {"resources": {"limits": {"cpu": "1", "memory": "2Gi"}}}
        with pytest.raises(
            Refused, match=r"403[\s\S]*exceeded quota: limit, requested: limits.mem"
        ):
            await api.create_namespaced_pod("small", pod("big", "pass", container=container))
        with pytest.raises(Refused, match="must specify limits.memory"):
            await api.create_namespaced_pod("small", pod("unsaid", "pass"))
        await api.delete_namespace("small")

        async def gone():
            found = (await api.list_namespace()).items
            return "small" not in {space.metadata.name for space in found}

        await holds(gone)


@on_bed
async def test_a_watch_goes_on_where_a_list_ended_until_its_history_is_gone(bed, api):
    version = (await api.list_namespaced_secret("default")).metadata.resource_version
    await api.create_namespaced_secret("default", secret("seen", a="b"))
    await api.delete_namespaced_secret("seen", "default")
    async with asyncio.timeout(SOON), watch.Watch() as stream:
        types = []
        async for event in stream.stream(
            api.list_namespaced_secret, "default", resource_version=version
        ):
            types.append(event["type"])
            if len(types) == 2:
                break
    assert types == ["ADDED", "DELETED"]
    bed.compact()
    await api.create_namespaced_secret("default", secret("unseen", a="b"))
    async with asyncio.timeout(SOON):
        text = await (
            await api.list_namespaced_secret(
                "default", resource_version=version, watch=True, _preload_content=False
            )
        ).text()
    assert '"code": 410' in text


@on_bed
async def test_writes_meet_the_conflicts_and_the_storms_that_are_asked_for(bed, api):
    await api.create_namespaced_config_map("default", settings("stormy"))

    async def write():
        try:
            await api.patch_namespaced_config_map("stormy", "default", {"data": {"a": "b"}})
        except Refused as error:
            return error.status
        return 200

    bed.conflicts(2)
    assert [await write() for _ in range(4)] == [200, 409, 200, 409]
    bed.conflicts(0)
    bed.throttle(60)
    with pytest.raises(Refused, match=r"429[\s\S]*Retry-After"):
        await api.list_namespaced_config_map("default")
    bed.throttle(0)
    bed.requests(reset=True)
    assert await write() == 200
    assert bed.requests() == {"patch configmaps": 1}
