"""The real kubectl against the API server (kubectl 1.32 speaks protobuf in its imperative commands)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apiserver.conftest import Api

MANIFEST = """
apiVersion: v1
kind: ConfigMap
metadata: {name: cm1}
data: {a: "1"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: c, image: "nginx:1.25", ports: [{containerPort: 80}]}
"""

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: k, cluster: {{server: "{url}"}}}}]
contexts: [{{name: k, context: {{cluster: k, user: u, namespace: default}}}}]
users: [{{name: u, user: {{token: t}}}}]
current-context: k
"""


def find_kubectl() -> str | None:
    """kubectl 1.32 itself where it is installed beside a version dispatcher, else whatever kubectl there is."""
    found = shutil.which("kubectl")
    folders = [Path(found).resolve().parent] if found else []
    folders += [Path("/usr/lib/google-cloud-sdk/bin"), Path.home() / "google-cloud-sdk/bin"]
    for folder in folders:
        if (folder / "kubectl.1.32").exists():
            return str(folder / "kubectl.1.32")
    return found


@dataclass
class Result:
    code: int
    out: str
    err: str


class Kubectl:
    """Runs kubectl commands in a home of its own."""

    def __init__(self, binary: str, home: Path, url: str) -> None:
        self.binary = binary
        self.home = home
        config = home / "config"
        config.write_text(KUBECONFIG.format(url=url))
        self.env = {**os.environ, "HOME": str(home), "KUBECONFIG": str(config)}

    async def start(self, *args: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            self.binary,
            *args,
            env=self.env,
            cwd=self.home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *args: str, limit_s: float = 30) -> Result:
        process = await self.start(*args)
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Result(process.returncode, out.decode(), err.decode())

    async def ok(self, *args: str) -> str:
        """The output of a command that must succeed."""
        result = await self.run(*args)
        assert result.code == 0, f"kubectl {' '.join(args)}: {result.err}"
        return result.out.strip()

    def write(self, name: str, text: str) -> str:
        path = self.home / name
        path.write_text(text)
        return str(path)

    @contextlib.asynccontextmanager
    async def running(self, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await self.start(*args)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


@pytest.fixture
def kubectl(api: Api, tmp_path: Path) -> Kubectl:
    binary = find_kubectl()
    if binary is None:
        pytest.skip("no kubectl found")
    return Kubectl(binary, tmp_path, api.url)


async def test_apply_create_change_repeat_and_read(kubectl: Kubectl) -> None:
    assert "default" in await kubectl.ok("get", "ns")
    path = kubectl.write("m.yaml", MANIFEST)
    created = await kubectl.ok("apply", "-f", path)
    assert created.splitlines() == ["configmap/cm1 created", "deployment.apps/web created"]
    assert "unchanged" in await kubectl.ok("apply", "-f", path)
    kubectl.write("m.yaml", MANIFEST.replace("1.25", "1.26").replace('a: "1"', 'a: "2"'))
    changed = await kubectl.ok("apply", "-f", path)
    assert changed.splitlines() == ["configmap/cm1 configured", "deployment.apps/web configured"]
    table = await kubectl.ok("get", "cm,deploy", "-A")
    assert "configmap/cm1" in table
    assert "0/2" in table
    deployment = json.loads(await kubectl.ok("get", "deploy", "web", "-o", "json"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "nginx:1.26"


async def test_patch_label_annotate_scale_and_delete(kubectl: Kubectl) -> None:
    await kubectl.ok("apply", "-f", kubectl.write("m.yaml", MANIFEST))
    await kubectl.ok("patch", "cm", "cm1", "--type=merge", "-p", '{"data":{"b":"2"}}')
    await kubectl.ok("patch", "cm", "cm1", "--type=json", "-p", '[{"op":"remove","path":"/data/a"}]')
    image = '{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"x:9"}]}}}}'
    await kubectl.ok("patch", "deploy", "web", "-p", image)
    await kubectl.ok("label", "cm", "cm1", "tier=low")
    await kubectl.ok("annotate", "cm", "cm1", "note=hi")
    await kubectl.ok("scale", "deploy", "web", "--replicas=5")
    await kubectl.ok("scale", "deploy", "web", "--replicas=6", "--current-replicas=5")
    await kubectl.ok("set", "image", "deploy/web", "c=y:1")
    cm = json.loads(await kubectl.ok("get", "cm", "-l", "tier=low", "-o", "json"))["items"][0]
    assert (cm["data"], cm["metadata"]["annotations"]["note"]) == ({"b": "2"}, "hi")
    template = "jsonpath={.spec.replicas} {.spec.template.spec.containers[0].image}"
    assert await kubectl.ok("get", "deploy", "web", "-o", template) == "6 y:1"
    assert await kubectl.ok("delete", "cm", "cm1") == 'configmap "cm1" deleted'
    await kubectl.ok("delete", "deploy", "web", "--cascade=foreground")
    missing = await kubectl.run("get", "cm", "cm1")
    assert (missing.code, missing.err.strip()) == (
        1,
        'Error from server (NotFound): configmaps "cm1" not found',
    )


async def test_imperative_creates_send_protobuf(kubectl: Kubectl) -> None:
    await kubectl.ok("create", "ns", "n1")
    await kubectl.ok("create", "configmap", "c", "--from-literal=k=v", "-n", "n1")
    await kubectl.ok("create", "secret", "generic", "s", "--from-literal=p=q", "-n", "n1")
    await kubectl.ok("create", "deployment", "d", "--image=nginx", "--replicas=3", "--port=80", "-n", "n1")
    await kubectl.ok("create", "service", "clusterip", "svc", "--tcp=80:8080", "-n", "n1")
    await kubectl.ok("create", "sa", "robot", "-n", "n1")
    await kubectl.ok("create", "job", "j", "--image=x", "-n", "n1")
    assert await kubectl.ok("get", "cm", "c", "-n", "n1", "-o", "jsonpath={.data.k}") == "v"
    assert await kubectl.ok("get", "secret", "s", "-n", "n1", "-o", "jsonpath={.data.p}") == "cQ=="
    spec = json.loads(await kubectl.ok("get", "deploy", "d", "-n", "n1", "-o", "json"))["spec"]
    assert (spec["replicas"], spec["selector"]["matchLabels"]) == (3, {"app": "d"})
    assert spec["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] == 80
    port = await kubectl.ok("get", "svc", "svc", "-n", "n1", "-o", "jsonpath={.spec.ports[0].targetPort}")
    assert port == "8080"
    assert await kubectl.ok("auth", "can-i", "create", "pods") == "yes"
    await kubectl.ok("delete", "ns", "n1")
    assert (await kubectl.run("get", "ns", "n1")).code == 1


async def test_watch_shows_edits(kubectl: Kubectl) -> None:
    await kubectl.ok("apply", "-f", kubectl.write("m.yaml", MANIFEST))
    async with kubectl.running("get", "cm", "-w", "--no-headers") as watching:
        assert watching.stdout is not None
        first = await asyncio.wait_for(watching.stdout.readline(), 10)
        assert first.split()[:2] == [b"cm1", b"1"]
        await kubectl.ok("patch", "cm", "cm1", "--type=merge", "-p", '{"data":{"b":"2"}}')
        second = await asyncio.wait_for(watching.stdout.readline(), 10)
        assert second.split()[:2] == [b"cm1", b"2"]


async def test_wait_describe_events_diff_and_raw(kubectl: Kubectl) -> None:
    path = kubectl.write("m.yaml", MANIFEST)
    await kubectl.ok("create", "-f", path)
    await kubectl.ok("replace", "-f", path)
    await kubectl.ok("wait", "--for=jsonpath={.data.a}=1", "cm/cm1", "--timeout=10s")
    assert "Name:         cm1" in await kubectl.ok("describe", "cm", "cm1")
    assert "2 desired" in await kubectl.ok("describe", "deploy", "web")
    await kubectl.ok("events")
    kubectl.write("m.yaml", MANIFEST.replace('a: "1"', 'a: "2"'))
    diff = await kubectl.run("diff", "-f", path)
    assert diff.code == 1
    assert '+  a: "2"' in diff.out
    assert (await kubectl.ok("get", "--raw", "/readyz?verbose")).endswith("readyz check passed")
    assert "configmaps" in await kubectl.ok("api-resources")
    assert "apps/v1" in await kubectl.ok("api-versions")
    assert "KIND:       ConfigMap" in await kubectl.ok("explain", "cm")
    version = json.loads(await kubectl.ok("version", "-o", "json"))
    assert version["serverVersion"]["minor"] == "32"


async def test_server_side_apply_conflicts_and_forces(kubectl: Kubectl) -> None:
    path = kubectl.write("m.yaml", MANIFEST)
    await kubectl.ok("apply", "--server-side", "-f", path)
    await kubectl.ok("scale", "deploy", "web", "--replicas=5")
    refused = await kubectl.run("apply", "--server-side", "-f", path)
    assert refused.code == 1
    assert ".spec.replicas" in refused.err
    await kubectl.ok("apply", "--server-side", "--force-conflicts", "-f", path)
    assert await kubectl.ok("get", "deploy", "web", "-o", "jsonpath={.spec.replicas}") == "2"


async def test_a_watch_from_an_expired_version_shows_410(kubectl: Kubectl, api: Api) -> None:
    events = await kubectl.ok("get", "--raw", "/api/v1/namespaces/default/pods?watch=1&resourceVersion=1")
    event = json.loads(events)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_run_and_delete_a_pod(kubectl: Kubectl) -> None:
    await kubectl.ok("run", "p", "--image=nginx")
    assert "Pending" in await kubectl.ok("get", "pods", "-o", "wide")
    assert await kubectl.ok("delete", "pod", "p") == 'pod "p" deleted'
    assert (await kubectl.run("get", "pods")).err.strip() == "No resources found in default namespace."
