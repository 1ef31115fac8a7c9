"""Cgroup paths as container runtimes write them."""

import pytest

from producers.agent.cgroups import Owner, owner

POD = "2c48913c-b29f-41e7-9350-020968147796"
SLICE = POD.replace("-", "_")
ID = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
INNER = "0123456789abcdef" * 4
STATIC = "4b1e6d3c5a7f4e0d8c9b2a1f0e9d8c7b"

V1 = "12:{controllers}:{path}\n11:memory:{path}\n1:name=systemd:{path}\n0::/\n"


def v1(path: str) -> str:
    return V1.format(controllers="cpu,cpuacct", path=path)


def v2(path: str) -> str:
    return f"0::{path}\n"


SYSTEMD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice"

POD_PATHS = {
    # containerd
    "cgroupfs": f"/kubepods/burstable/pod{POD}/{ID}",
    "cgroupfs, guaranteed": f"/kubepods/pod{POD}/{ID}",
    "systemd": f"{SYSTEMD}/cri-containerd-{ID}.scope",
    "systemd, guaranteed": f"/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    "systemd cgroups under a cgroupfs runtime": f"/system.slice/containerd.service/kubepods-besteffort-pod{SLICE}.slice"
    f":cri-containerd:{ID}",
    # CRI-O
    "crio, systemd": f"{SYSTEMD}/crio-{ID}.scope",
    "crio, cgroupfs": f"/kubepods/besteffort/pod{POD}/crio-{ID}",
    "crio, container subgroup": f"{SYSTEMD}/crio-{ID}.scope/container",
    # docker through cri-dockerd
    "docker, systemd": f"{SYSTEMD}/docker-{ID}.scope",
    "docker, cgroupfs": f"/kubepods/besteffort/pod{POD}/{ID}",
    # nested
    "kind": f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{SLICE}"
    f".slice/cri-containerd-{ID}.scope",
    "node in docker": f"/docker/{INNER}/kubelet/kubepods/besteffort/pod{POD}/{ID}",
    "seen from another cgroup namespace": f"/../../../kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    "docker inside the pod": f"/kubepods/burstable/pod{POD}/{ID}/docker/{INNER}",
    "systemd inside the pod": f"{SYSTEMD}/cri-containerd-{ID}.scope/system.slice/docker-{INNER}.scope",
    "kubernetes inside the pod": f"/kubepods/pod{POD}/{ID}/kubepods/burstable/pod{POD[::-1]}/{INNER}",
    "another slice": f"/custom.slice/custom-kubepods.slice/custom-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
}


@pytest.mark.parametrize("form", [v1, v2])
@pytest.mark.parametrize("path", POD_PATHS.values(), ids=POD_PATHS)
def test_pods_and_their_containers(form, path: str) -> None:
    assert owner(form(path)) == Owner(POD, ID)


def test_static_pods_have_a_hash_for_a_uid() -> None:
    assert owner(v2(f"/kubepods/burstable/pod{STATIC}/{ID}")) == Owner(STATIC, ID)
    path = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{ID}.scope"
    assert owner(v1(path)) == Owner(STATIC, ID)


def test_what_the_runtime_runs_for_a_pod_is_of_no_container() -> None:
    assert owner(v2(f"{SYSTEMD}/crio-conmon-{ID}.scope")) == Owner(POD)
    assert owner(v2(SYSTEMD)) == Owner(POD)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/init.scope",
        "/system.slice/nvidia-persistenced.service",
        f"/system.slice/docker-{ID}.scope",  # docker without Kubernetes
        f"/docker/{ID}",
        "/user.slice/user-1000.slice/session-2.scope",
        "/machine.slice/libpod-" + ID + ".scope",  # podman: pod, but no pod of Kubernetes
        f"/tripod{POD}/{ID}",
        "/kubepods.slice",
    ],
)
def test_processes_of_no_pod(path: str) -> None:
    assert owner(v1(path)) is None
    assert owner(v2(path)) is None
    assert owner("") is None
    assert owner("nonsense") is None


def test_a_path_that_says_pod_a_hundred_thousand_times_takes_no_longer_than_any() -> None:
    assert owner(v2("/" + "pod" * 100_000)) is None
    assert owner(v2("/pod" * 100_000 + f"/kubepods/pod{POD}/{ID}" + "/pod" * 100_000)) == Owner(POD, ID)
