"""What the chart renders: by default, in production, and from every snippet of the two production guides."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from consumers.alerter.configuration import parse
from consumers.metrics.settings import url_from_values
from consumers.mutator.options import read_options
from consumers.scaler.offers import read_offers
from deploy.contract.chart import chart_files
from deploy.local.callout import GUARD_ROLES
from deploy.local.monitoring import alertmanagers_from_values
from deploy.local.roles import ASKED_ROLES, CLUSTER_ROLES, COEXISTING_ROLES, METRICS_ROLES, ROLES
from producers.gateway.configuration import HAMI, NATIVE, Reach, condition, webhook_configuration
from producers.gateway.guard import guard
from schemas.catalogue import MODELS
from schemas.dialects.tensorfusion import (
    PLACEHOLDER_CLASS,
    PLACEHOLDER_PRIORITY,
    PRIORITIES,
    PRIORITY_CLASSES,
)
from schemas.kube.kinds import KINDS
from schemas.kube.scheduler import read_scheduling
from schemas.placement import TopologyRules
from tests.chart.render import CHART, GUIDES, pods, production, rendered, values_of

EVERY = {
    "default": {},
    "production": production(),
    **{file.stem: values_of(file) for file in GUIDES},
    "production+000": production(*(file for file in GUIDES if file.stem.startswith("000"))),
    "production+004": production(*(file for file in GUIDES if file.stem.startswith("004"))),
    "kube-scheduler": {"kubeScheduler": {"enabled": True}},
    "external-bus": {
        "bus": {
            "external": {"urls": ["tls://nats.example.org:4222"]},
            "tls": {"existingSecret": "nats-authority"},
            "auth": {"existingSecret": "nats-logins"},
        }
    },
}
PASSIVE = {"migration": {"passive": True}}
IDS = pytest.mark.parametrize("values", EVERY.values(), ids=EVERY)
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


@IDS
def test_pods_are_restricted_pinned_and_bounded(values: dict[str, Any]) -> None:
    objects, _ = rendered(values)
    for key, template in pods(objects).items():
        spec = template["spec"]
        agent = key[1].endswith("-agent")
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, key
        assert agent or spec["securityContext"]["runAsNonRoot"], key
        assert bool(spec.get("hostPID")) == agent
        assert not spec.get("hostNetwork")
        assert any("hostPath" in volume for volume in spec["volumes"]) == agent
        for container in spec["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert re.search(r"(:[^:/]+|@sha256:[0-9a-f]{64})$", container["image"]), container["image"]
            assert not container["image"].endswith(":latest")
            assert {"requests", "limits"} <= set(container["resources"]), key
            assert container.get("livenessProbe") or key[0] in ("Job", "CronJob") or "greptime" in key[1]
    for kind in ("Deployment", "StatefulSet"):
        for name in (name for found, name in objects if found == kind and "greptime" not in name):
            budget = objects["PodDisruptionBudget", name] if "kube-scheduler" not in name else None
            assert budget is None or budget["spec"]["selector"] == objects[kind, name]["spec"]["selector"]


@IDS
def test_selectors_meet_the_pods_they_mean(values: dict[str, Any]) -> None:
    objects, _ = rendered(values)
    labels = {key: template["metadata"]["labels"] for key, template in pods(objects).items()}
    for (kind, name), document in objects.items():
        if kind in ("Deployment", "StatefulSet", "DaemonSet"):
            chosen = document["spec"]["selector"]["matchLabels"]
            assert [key for key, found in labels.items() if chosen.items() <= found.items()] == [(kind, name)]
            for term in _required_anti_affinity(document):
                assert _matches(term["labelSelector"], labels[kind, name]), f"{name} does not keep away from itself"
        if kind == "Service":
            ports = {port.get("targetPort") for port in document["spec"]["ports"]} - {None}
            hit = [key for key, found in labels.items() if document["spec"]["selector"].items() <= found.items()]
            assert hit or name.endswith("-agent-metrics"), name
            for key in hit:
                offered = {p["name"] for c in pods(objects)[key]["spec"]["containers"] for p in c.get("ports", ())}
                assert ports <= offered, name


def _required_anti_affinity(document: dict[str, Any]) -> list[dict[str, Any]]:
    anti = (document["spec"]["template"]["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    preferred = [term["podAffinityTerm"] for term in anti.get("preferredDuringSchedulingIgnoredDuringExecution") or ()]
    return [*(anti.get("requiredDuringSchedulingIgnoredDuringExecution") or ()), *preferred]


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = (selector.get("matchLabels") or {}).items() <= labels.items()
    return wanted and all(labels.get(e["key"]) in e["values"] for e in selector.get("matchExpressions") or ())


@IDS
def test_every_role_runs_once_and_may_do_what_it_must(values: dict[str, Any]) -> None:
    objects, _ = rendered(values)
    running: dict[str, str] = {}
    for (kind, name), document in objects.items():
        for container in document["spec"]["template"]["spec"]["containers"] if kind == "Deployment" else ():
            for role in roles_of(container):
                assert role == "gateway" or role not in running
                running[role] = name
    known = {*ROLES, *ASKED_ROLES, *CLUSTER_ROLES, *METRICS_ROLES, *GUARD_ROLES, "gateway", "mutator"}
    assert set(running) <= known | set(COEXISTING_ROLES)
    assert known - set(running) <= {
        *METRICS_ROLES,
        "scaler",
        *(GUARD_ROLES if "external" in values.get("bus", {}) else ()),
    }
    accounts = {role: [] for role in running}
    for (kind, name), document in objects.items():
        if kind in ("RoleBinding", "ClusterRoleBinding"):
            role = (document["roleRef"]["kind"], document["roleRef"]["name"])
            assert role in objects or "kube-scheduler" in name, name
            for subject in document["subjects"]:
                assert ("ServiceAccount", subject["name"]) in objects
                accounts.setdefault(name, []).append(subject["name"])
    for role in set(CLUSTER_ROLES) & set(running):
        assert any(running[role] in found for found in accounts.values()), role
        template = objects["Deployment", running[role]]["spec"]["template"]["spec"]
        assert template["automountServiceAccountToken"] is True


def roles_of(container: dict[str, Any]) -> list[str]:
    arguments = container.get("args", [])
    if "run" not in arguments:
        return []
    command = arguments[arguments.index("run") + 1 :]
    return command[1].split(",") if command[0] == "group" else command[:1]


def test_roles_may_do_exactly_what_the_manifests_say() -> None:
    objects, _ = rendered({})
    source = [
        document
        for file in ("roles.yaml", "accounts.yaml")
        for document in yaml.safe_load_all((CHART / "files" / "rbac" / file).read_text())
    ]
    for document in source:
        if document["kind"] in ("Role", "ClusterRole") and document["metadata"]["name"] not in (
            "gpubus-gateway",
            "gpubus-tainter",
        ):
            name = document["metadata"]["name"].replace("gpubus-", "tensor-fusion-sys-")
            assert objects[document["kind"], name]["rules"] == document["rules"]
    for part, speaks in (("controller", True), ("monitor", True), ("scheduler", False), ("webhook", False)):
        spec = objects["Deployment", f"tensor-fusion-sys-{part}"]["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is speaks


def test_the_webhook_is_what_the_code_renders() -> None:
    for values, resources in (
        ({}, HAMI),
        ({"dynamicConfig": {"autoMigration": {"enable": True}}}, (*HAMI, *NATIVE)),
        ({"controller": {"nvidiaOperatorProgressiveMigration": True}}, (*HAMI, *NATIVE)),
    ):
        beside = NATIVE if "controller" in values else ()
        found = rendered(values)[0]["MutatingWebhookConfiguration", "tensor-fusion-sys-mutating-webhook"]
        reach = Reach(
            resources=tuple(dict.fromkeys(resources)),
            beside=beside,
            excluded_namespaces=("kube-system", "tensor-fusion-sys"),
        )
        service = ("tensor-fusion-sys", "tensor-fusion-sys-webhook")
        wanted = webhook_configuration("any", ca_bundle=b"", service=service, reach=reach)["webhooks"][0]
        (hook,) = found["webhooks"]
        del wanted["clientConfig"]["caBundle"], wanted["namespaceSelector"]["matchLabels"]
        assert hook == wanted
    assert condition(HAMI) != condition((*HAMI, *NATIVE))


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({}, ["controller", "monitor"]),
        ({"groups": {"b": {"roles": ["binder"]}}, "controller": {"roles": ["watcher"]}}, ["b", "monitor"]),
        ({"migration": {"passive": True}}, []),
    ],
)
def test_the_guard_is_what_the_code_renders_and_lets_those_write_who_bind_and_resize(
    values: dict[str, Any], parts: list[str]
) -> None:
    objects = rendered(values)[0]
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    found = [objects[kind, "tensor-fusion-sys-guard"] for kind in kinds if (kind, "tensor-fusion-sys-guard") in objects]
    users = [f"system:serviceaccount:tensor-fusion-sys:tensor-fusion-sys-{part}" for part in parts]
    wanted = guard("tensor-fusion-sys-guard", users) if users else ()
    assert [one["spec"] for one in found] == [one["spec"] for one in wanted]


def test_files_that_follow_from_the_code_are_as_it_says() -> None:
    for name, text in chart_files().items():
        committed = (CHART / "files" / name).read_text()
        assert committed == text, "run `gpubus schema chart --out deploy/chart/files`"
    assert {file.name for file in (CHART / "crds").glob("*.yaml")} == {f"{kind.plural}.yaml" for kind in KINDS}


def test_default_values_say_what_the_code_would_do() -> None:
    builtin = yaml.safe_load((CHART.parents[1] / "consumers" / "alerter" / "builtin.yaml").read_text())
    assert DEFAULTS["dynamicConfig"]["alertRules"] == builtin["alertRules"]
    assert DEFAULTS["dynamicConfig"]["metricsTTL"] == builtin["metricsTTL"]
    listed = DEFAULTS["providerConfigs"]["nvidia"]["hardwareMetadata"]
    models = {model.name: model for model in MODELS.values() if not model.stand_in}
    assert [entry["model"] for entry in listed] == list(models)
    for entry in listed:
        assert float(entry["fp16TFlops"]) * 1000 == models[entry["model"]].tflops_milli
        assert entry["fullModelName"] in models[entry["model"]].nvml


@IDS
def test_what_roles_read_is_what_they_can_read(values: dict[str, Any]) -> None:
    data = rendered(values)[0]["ConfigMap", "tensor-fusion-sys-config"]["data"]
    assert parse(data["config.yaml"]).rules
    read_options(data["admission.yaml"])
    assert read_scheduling(data["scheduler-config.yaml"]).max_workers_per_node == 256


def test_what_is_said_of_scheduling_reaches_the_watcher() -> None:
    plugins = [
        {"name": "GPUResourcesFit", "args": {"maxWorkerPerNode": 9, "vramWeight": 0.5, "tflopsWeight": 0.5}},
        {"name": "GPUNetworkTopologyAware", "args": {"mode": "hard"}},
    ]
    profiles = [{"schedulerName": "tensor-fusion-scheduler", "pluginConfig": plugins}]
    policy = {"nodeSchedulerPolicy": "binpack", "gpuSchedulerPolicy": "spread"}
    objects, _ = rendered({"schedulerConfig": {"profiles": profiles}, "scheduler": {"policy": policy}})
    where = _environment(objects, "controller")["GPUBUS_SCHEDULER_CONFIG"]
    _, name, key = where.removeprefix("configmap:").split("/")
    found = read_scheduling(objects["ConfigMap", name]["data"][key])
    assert (found.max_workers_per_node, found.vram_weight, found.topology) == (9, 50, TopologyRules(mode="hard"))
    assert (found.node_policy, found.gpu_policies) == ("binpack", ("spread",))
    assert objects["Role", "tensor-fusion-sys-watcher"]["rules"][0]["resources"] == ["configmaps"]
    for wrong in ({"name": "GPUResourceFit"}, {"name": "GPUResourcesFit", "args": {"maxWorkersPerNode": 9}}):
        profile = {"schedulerName": "tensor-fusion-scheduler", "pluginConfig": [wrong]}
        with pytest.raises(Exception, match="schedulerConfig"):
            rendered({"schedulerConfig": {"profiles": [profile]}})


@IDS
def test_custom_resources_are_what_we_decode(values: dict[str, Any]) -> None:
    specs = {kind.name: kind.spec for kind in KINDS}
    found = [document for document in rendered(values)[0].values() if document["kind"] in specs]
    assert {document["kind"] for document in found} == {
        "TensorFusionCluster",
        "ProviderConfig",
        "SchedulingConfigTemplate",
    }
    for document in found:
        msgspec.convert(document["spec"], specs[document["kind"]])


def _environment(objects: Any, part: str) -> dict[str, Any]:
    container = objects["Deployment", f"tensor-fusion-sys-{part}"]["spec"]["template"]["spec"]["containers"][0]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_metrics_go_where_the_greptime_values_say() -> None:
    for name in ("000-greptime-cloud", "000-greptime-own"):
        values = EVERY[name]
        environment = _environment(rendered(values)[0], "monitor")
        plain = url_from_values({**values["greptime"], "user": "u", "password": "p"})
        assert environment["GPUBUS_METRICS"] == plain.replace("u:p@", "")
        assert ("GPUBUS_METRICS_PASSWORD" in environment) == ("cloud" in name)
    objects, _ = rendered(EVERY["000-greptime-cloud"])
    assert objects["Secret", "tensor-fusion-sys-greptime"]["stringData"] == {"user": "user", "password": "password"}
    objects, _ = rendered({"greptime": {"host": "h", "existingSecret": "mine"}})
    assert _environment(objects, "monitor")["GPUBUS_METRICS_USER"]["secretKeyRef"]["name"] == "mine"
    assert not [key for key in objects if "greptime" in key[1]]


def test_without_a_store_nothing_waits_for_one_and_the_notes_say_so() -> None:
    objects, notes = rendered(production())
    arguments = objects["Deployment", "tensor-fusion-sys-monitor"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("group") + 1] == "notifier,scaler"
    assert "set greptime.host" in notes


def test_alerts_go_where_the_values_say() -> None:
    objects, _ = rendered(production())
    addresses = _environment(objects, "monitor")["GPUBUS_ALERTMANAGER"].split(",")
    assert len(addresses) == 3
    assert addresses[0].startswith("http://tensor-fusion-sys-alert-manager-0.tensor-fusion-sys-alert-manager-headless.")
    values = EVERY["000-alertmanager-other"]
    objects, _ = rendered(values)
    wanted = ",".join(alertmanagers_from_values(values, namespace="any"))
    assert _environment(objects, "monitor")["GPUBUS_ALERTMANAGER"] == wanted
    assert not [key for key in objects if "alert-manager" in key[1]]
    objects, _ = rendered({"controller": {"command": ["/manager", "-leader-elect"]}})
    arguments = objects["Deployment", "tensor-fusion-sys-monitor"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("group") + 1] == "recorder"


def test_the_production_overlay_is_what_the_guides_list() -> None:
    objects, _ = rendered(production())

    def part(kind: str, name: str) -> tuple[int, dict[str, Any]]:
        spec = objects[kind, f"tensor-fusion-sys-{name}"]["spec"]
        return spec["replicas"], spec["template"]["spec"]["containers"][0]["resources"]

    assert part("Deployment", "controller") == (
        2,
        {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "4Gi"}},
    )
    assert part("StatefulSet", "alert-manager")[0] == 3
    claims = objects["StatefulSet", "tensor-fusion-sys-alert-manager"]["spec"]["volumeClaimTemplates"]
    assert claims[0]["spec"]["resources"]["requests"]["storage"] == "5Gi"
    assert part("Deployment", "scheduler") == (
        3,
        {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
    )
    assert part("Deployment", "webhook")[0] == 2
    assert part("Deployment", "monitor")[0] == 2
    assert part("StatefulSet", "nats")[0] == 3
    assert not [key for key in objects if "greptimedb" in key[1]]
    for name in ("controller", "scheduler", "webhook", "monitor"):
        spec = objects["Deployment", f"tensor-fusion-sys-{name}"]["spec"]["template"]["spec"]
        assert spec["priorityClassName"] == "system-cluster-critical"


def test_the_pool_oversells_as_the_guides_say() -> None:
    def over(values: dict[str, Any]) -> dict[str, int]:
        cluster = rendered(values)[0]["TensorFusionCluster", "tensor-fusion"]
        return cluster["spec"]["gpuPools"][0]["specTemplate"]["capacityConfig"]["oversubscription"]

    assert over({}) == {"tflopsOversellRatio": 2000, "vramExpandToHostMem": 50, "vramExpandToHostDisk": 60}
    assert over(EVERY["000-oversubscription"]) == {
        "tflopsOversellRatio": 300,
        "vramExpandToHostMem": 40,
        "vramExpandToHostDisk": 20,
    }
    assert over(EVERY["004-production"])["vramExpandToHostMem"] == 0


def test_the_images_of_other_products_are_ours_and_the_notes_say_so() -> None:
    objects, notes = rendered(EVERY["004-production"])
    for part in ("Deployment", "tensor-fusion-sys-scheduler"), ("DaemonSet", "tensor-fusion-sys-agent"):
        assert objects[part]["spec"]["template"]["spec"]["containers"][0]["image"] == "gpubus/gpubus:0.1.0"
    assert "devicePlugin names projecthami/hami" in notes
    objects, notes = rendered(EVERY["000-images"])
    assert "cluster.hypervisorImage names tensorfusion/" in notes
    mirrored = {"global": {"imageRegistry": "registry.example.org"}, "image": {"digest": "sha256:" + "a" * 64}}
    objects, _ = rendered(mirrored)
    images = {c["image"] for template in pods(objects).values() for c in template["spec"]["containers"]}
    assert f"registry.example.org/gpubus/gpubus@sha256:{'a' * 64}" in images
    assert all(image.startswith("registry.example.org/") for image in images)


def test_guides_find_the_names_that_their_commands_use() -> None:
    objects, _ = rendered({}, name="hami", namespace="hami-system")
    assert {("Deployment", "hami-scheduler"), ("Deployment", "hami-webhook")} <= set(objects)
    objects, _ = rendered({})
    controller, gateway = objects["Deployment", "tensor-fusion-sys-controller"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert controller["name"] == "controller"
    assert gateway["args"][gateway["args"].index("--rest") + 1] == "127.0.0.1:8080"


def test_pods_restart_for_what_they_read_once_and_for_nothing_else() -> None:
    def templates(values: dict[str, Any]) -> dict[Any, Any]:
        return pods(rendered(values)[0])

    before = templates({})
    changes = {
        "rules": ({"dynamicConfig": {"alertRules": DEFAULTS["dynamicConfig"]["alertRules"][:3]}}, set()),
        "admission": ({"webhook": {"admission": {"defaultCores": 10}}}, {"tensor-fusion-sys-webhook"}),
        "bus": ({"bus": {"jetstream": {"syncAlways": False}}}, {"tensor-fusion-sys-nats"}),
        "receivers": (EVERY["000-alertmanager-own"], {"tensor-fusion-sys-alert-manager"}),
    }
    for values, restarted in changes.values():
        after = templates(values)
        assert {key[1] for key in before if before[key] != after[key]} == restarted


def test_pods_of_a_deployment_are_replaced_without_room_for_one_more() -> None:
    """As many nodes as replicas that may not share one: a pod beyond them would stay Pending for good."""
    for values in (
        production(),
        EVERY["004-production"],
        EVERY["production+004"],
        {"kubeScheduler": {"enabled": True}},
    ):
        for (kind, name), document in rendered(values)[0].items():
            if kind == "Deployment":
                required = any("labelSelector" in term for term in _strictly_apart(document))
                alone = document["spec"]["replicas"] == 1 and not required
                how = {"maxUnavailable": 0, "maxSurge": 1} if alone else {"maxUnavailable": 1, "maxSurge": 0}
                assert document["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": how}, name
    apart = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    term = {"labelSelector": {"matchLabels": {"app": "hami-webhook"}}, "topologyKey": "kubernetes.io/hostname"}
    own = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 0}}
    values = {
        "scheduler": {"topologySpreadConstraints": [apart]},
        "webhook": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}},
        "controller": {"updateStrategy": own},
    }
    objects, _ = rendered(values)
    found = {
        part: objects["Deployment", f"tensor-fusion-sys-{part}"]["spec"]["strategy"]
        for part in ("scheduler", "webhook", "monitor", "controller")
    }
    assert [found[part]["rollingUpdate"]["maxSurge"] for part in ("scheduler", "webhook", "monitor")] == [0, 0, 1]
    assert found["controller"] == own


def _strictly_apart(document: dict[str, Any]) -> list[dict[str, Any]]:
    anti = (document["spec"]["template"]["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    return anti.get("requiredDuringSchedulingIgnoredDuringExecution") or []


def test_beside_another_product_nothing_is_taken_and_nothing_of_its_chart_is_made() -> None:
    objects, _ = rendered(PASSIVE)
    theirs = {
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "PriorityClass",
        *(kind.name for kind in KINDS),
    }
    assert {kind for kind, _ in objects} & theirs == set()
    running = {
        role
        for one in pods(objects).values()
        for container in one["spec"]["containers"]
        for role in roles_of(container)
    }
    assert running == {"watcher", "inspector", "gateway", "mutator", "authenticator", "recorder", "agent"}
    granted = {
        (verb, resource)
        for (kind, name), one in objects.items()
        if kind == "ClusterRole"
        and "issuer" not in name
        and "admin" not in name
        and ("ClusterRoleBinding", name) in objects
        for rule in one["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }
    assert {verb for verb, resource in granted if resource != "tokenreviews"} == {"get", "list", "watch"}
    active, _ = rendered({})
    assert active["ConfigMap", "tensor-fusion-sys-nats"] == objects["ConfigMap", "tensor-fusion-sys-nats"]
    left = {"cluster", "schedulingConfigTemplate", "priorityClasses"}
    window = {key: {"enabled": False} for key in left} | {"providerConfigs": {"nvidia": {"enabled": False}}}
    made = {kind for kind, _ in rendered(window)[0]}
    assert made & theirs == {"MutatingWebhookConfiguration", "ValidatingAdmissionPolicy"}


@pytest.mark.parametrize("callout", [True, False])
def test_parts_log_in_to_a_bus_of_others_with_what_its_secrets_hold(callout: bool) -> None:
    objects, _ = rendered(values_of(EVERY["external-bus"], {"bus": {"external": {"callout": callout}}}))
    made = {name for kind, name in objects if kind in ("Secret", "Certificate")}
    for (kind, name), template in pods(objects).items():
        mounted = {volume["name"]: volume["secret"] for volume in template["spec"]["volumes"] if "secret" in volume}
        if "bus-ca" in mounted:
            assert mounted["bus-ca"]["secretName"] == "nats-authority"
            login = mounted.get("bus-login")
            part = name.removeprefix("tensor-fusion-sys-")
            if part == "agent" and callout:
                assert login is None
            else:
                assert login == {"secretName": "nats-logins", "items": [{"key": part, "path": "password"}]}, kind
        left = {one["secretName"] for key, one in mounted.items() if key != "webhook-tls"}
        assert left <= {"nats-authority", "nats-logins", "tensor-fusion-sys-alert-manager", *made}, name
    agent = objects["DaemonSet", "tensor-fusion-sys-agent"]["spec"]["template"]["spec"]["containers"][0]
    user = next(one["value"] for one in agent["env"] if one["name"] == "GPUBUS_NATS_USER")
    assert user == ("agent/$(NODE_NAME)" if callout else "agent")
    controller = objects["Deployment", "tensor-fusion-sys-controller"]["spec"]["template"]["spec"]
    assert ("authenticator" in roles_of(controller["containers"][0])) is callout
    seeds = [one["secret"] for one in controller["volumes"] if one["name"] == "callout"]
    wanted = [{"secretName": "nats-logins", "items": [{"key": "callout-seed", "path": "seed"}]}]
    assert seeds == (wanted if callout else [])


def test_gateways_and_mutators_go_on_until_nodes_have_heard_that_they_end() -> None:
    objects, _ = rendered({})
    for template in pods(objects).values():
        for container in template["spec"]["containers"]:
            if set(roles_of(container)) & {"gateway", "mutator"}:
                wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
                assert 5 <= wait <= template["spec"]["terminationGracePeriodSeconds"] - 15


def test_a_password_that_the_chart_keeps_restarts_who_reads_it() -> None:
    def changed(**login: str) -> set[str]:
        before, after = (
            pods(rendered({"greptime": {"host": "g", "user": "u", **given}})[0]) for given in ({"password": "a"}, login)
        )
        return {key[1] for key in before if before[key] != after[key]}

    assert changed(password="a") == set()
    assert changed(password="b") == {"tensor-fusion-sys-monitor"}
    whose = {"host": "g", "existingSecret": "s"}
    assert "metrics-login" not in str(rendered({"greptime": whose})[0])


@pytest.mark.parametrize("name", ["my.release", "1st", "a" * 39])
def test_names_that_kubernetes_would_refuse_later_are_refused_at_once(name: str) -> None:
    with pytest.raises(Exception, match="set fullnameOverride to at most 38"):
        rendered({}, name=name)
    assert ("Service", "short-webhook") in rendered({"fullnameOverride": "short"}, name=name)[0]
    longest, _ = rendered({"groups": {"a" * 17: {"roles": []}}}, name="a" * 38)
    for kind, found in longest:
        most = {"StatefulSet": 52, "CronJob": 52}.get(kind, 63 if kind in ("Service", "Deployment", "Job") else 253)
        assert len(found) <= most, (kind, found)


def test_roles_may_be_grouped_otherwise() -> None:
    values = {
        "controller": {"roles": ["watcher", "actuator", "updater", "workload", "status", "reconciler"]},
        "groups": {"binder": {"roles": ["binder"], "replicas": 5}},
        "webhook": {"roles": ["gateway", "mutator", "allocator", "inspector"]},
        "scheduler": {"enabled": False},
    }
    objects, _ = rendered(values)
    assert objects["Deployment", "tensor-fusion-sys-binder"]["spec"]["replicas"] == 5
    assert ("Deployment", "tensor-fusion-sys-scheduler") not in objects
    subjects = objects["ClusterRoleBinding", "tensor-fusion-sys-binder"]["subjects"]
    assert [subject["name"] for subject in subjects] == ["tensor-fusion-sys-binder"]


def test_clients_of_remote_workers_are_told_where_those_are_if_wanted() -> None:
    objects, _ = rendered({"webhook": {"connections": {"enabled": True}}})
    spec = objects["Deployment", "tensor-fusion-sys-webhook"]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"]
    gateway = next(one for one in spec["containers"] if one["name"] == "gateway")
    assert "--connections" in gateway["args"]
    subjects = objects["ClusterRoleBinding", "tensor-fusion-sys-gateway"]["subjects"]
    assert [subject["name"] for subject in subjects] == ["tensor-fusion-sys-webhook"]
    said = yaml.safe_load(objects["ConfigMap", "tensor-fusion-sys-config"]["data"]["admission.yaml"])
    assert said["operatorEndpoint"] == "https://tensor-fusion-sys-webhook.tensor-fusion-sys.svc"
    plain, _ = rendered({})
    assert ("ClusterRoleBinding", "tensor-fusion-sys-gateway") not in plain
    own = {"webhook": {"connections": {"enabled": True}, "admission": {"operatorEndpoint": "https://gpus.example"}}}
    said = yaml.safe_load(rendered(own)[0]["ConfigMap", "tensor-fusion-sys-config"]["data"]["admission.yaml"])
    assert said["operatorEndpoint"] == "https://gpus.example"


def test_agents_may_be_the_pools() -> None:
    objects, _ = rendered({"devicePlugin": {"managedBy": "Pool"}})
    assert ("DaemonSet", "tensor-fusion-sys-agent") not in objects
    pool = objects["TensorFusionCluster", "tensor-fusion"]["spec"]["gpuPools"][0]["specTemplate"]
    template = pool["componentConfig"]["hypervisor"]["podTemplate"]["template"]
    whole = rendered({})[0]["DaemonSet", "tensor-fusion-sys-agent"]["spec"]["template"]
    del whole["spec"]["nodeSelector"]
    assert template == whole


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"controler": {}}, "controler"),
    ({"controller": {"replica": 2}}, "additional properties 'replica' not allowed"),
    ({"bus": {"replicas": 2}}, "/bus/replicas"),
    ({"cluster": {"pool": {"capacityConfig": {"oversubscription": {"vramExpandToHostMem": 101}}}}}, "maximum"),
    ({"controller": {"command": ["/manager", "-v=5"]}}, "are understood; set others under controller"),
    ({"controller": {"command": ["-enable-alert", "-alert-manager-addr", "am:9093"]}}, "begin it with http"),
    ({"greptime": {"isCloud": True, "host": "h"}}, "greptime.existingSecret"),
    ({"greptime": {"image": {"tag": "latest"}}}, "/greptime/image/tag"),
    (
        {"scheduler": {"overcommit": {"enabled": True, "deviceMemoryScaling": 2.0}}},
        "capacityConfig.oversubscription",
    ),
    ({"webhook": {"existingSecret": "s"}}, "webhook.caBundle"),
    ({"groups": {"controller": {"roles": ["binder"]}}}, "set it under controller"),
    ({"cluster": {"hypervisorImage": "own/agent:latest"}}, "tag other than latest"),
    ({"scheduler": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 0}}}}, "updateStrategy"),
    ({"monitor": {"updateStrategy": {"rollingUpdate": {"maxsurge": 1}}}}, "maxsurge"),
    ({"bus": {"external": {"urls": ["tls://n:4222"]}}}, "needs bus.tls.existingSecret"),
    (
        {"bus": {"external": {"urls": ["tls://n:4222"]}, "tls": {"existingSecret": "a"}}},
        "a Secret with the keys controller, monitor, scheduler, webhook, agent",
    ),
    (
        {"bus": {"external": {"urls": ["nats://n:4222"], "callout": True}, "tls": {"enabled": False}}},
        "a Secret with the keys controller, monitor, scheduler, webhook, callout-seed",
    ),
    ({"bus": {"external": {"callout": True}}}, "bus.external.callout needs bus.external.urls"),
    ({"bus": {"replicas": 1, "streamReplicas": 3}}, "bus.streamReplicas is 3"),
    ({"bus": {"persistence": {"size": "10Gi"}}}, "bus.jetstream.maxFile is 38GB"),
    ({"bus": {"jetstream": {"maxFile": "38Ki B"}}}, "/bus/jetstream/maxFile"),
    ({"bus": {"persistence": {"size": "40G"}}}, "bus.jetstream.maxFile is 38GB"),
    ({"greptime": {"host": "https://x.greptime.cloud"}}, "write the name alone"),
    ({"greptime": {"host": "x:4000"}}, "write the name alone"),
    ({"groups": {"admin": {"roles": ["status"]}}}, "invalid propertyName 'admin'"),
    ({"groups": {"a" * 22: {"roles": ["status"]}}, "fullnameOverride": "b" * 38}, "longer than 63 characters"),
    ({"webhook": {"enabled": False}}, "no group with replicas has the role mutator"),
    ({"webhook": {"replicas": 0}}, "no group with replicas has the role mutator"),
    ({"migration": {"passive": True}, "devicePlugin": {"managedBy": "Pool"}}, "agents cannot be a pool's"),
    ({"migration": {"passive": True}, "kubeScheduler": {"enabled": True}}, "kubeScheduler.enabled asks allocators"),
]


@pytest.mark.parametrize(("values", "says"), REFUSED)
def test_what_cannot_be_meant_is_refused_with_its_place(values: dict[str, Any], says: str) -> None:
    with pytest.raises(Exception, match=re.escape(says)):
        rendered(values)


def test_the_priority_classes_are_those_that_admission_writes() -> None:
    objects, _ = rendered({})
    made = {name: one["value"] for (kind, name), one in objects.items() if kind == "PriorityClass"}
    by_qos = {name: PRIORITIES.get(qos, 0) for qos, name in PRIORITY_CLASSES.items()}
    assert made == {**by_qos, PLACEHOLDER_CLASS: PLACEHOLDER_PRIORITY}


@pytest.mark.parametrize(("wide", "scope"), [(True, "cluster"), (False, "namespace")])
def test_whose_pods_may_be_evicted_is_told_to_the_watcher_and_kept_from_the_alert_rules(wide: bool, scope: str) -> None:
    objects, _ = rendered({"dynamicConfig": {"preemptClusterWideFromEnv": wide}})
    told = [
        variable["value"]
        for one in objects.values()
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
        for variable in container.get("env", ())
        if variable["name"] == "GPUBUS_PREEMPTION"
    ]
    assert told == [scope]
    rules = next(one for (kind, name), one in objects.items() if kind == "ConfigMap" and "config.yaml" in one["data"])
    assert "preempt" not in rules["data"]["config.yaml"]


def test_the_kinds_of_nodes_that_can_be_had_reach_the_scaler(tmp_path: Path) -> None:
    offer = {"instanceType": "g", "gpuModel": "A100", "gpus": 8, "tflops": 312, "vram": "80Gi", "costPerHour": 32.5}
    objects, _ = rendered({"scaling": {"offers": [offer]}})
    monitor = objects["Deployment", "tensor-fusion-sys-monitor"]["spec"]["template"]["spec"]
    (container,) = monitor["containers"]
    assert {"name": "GPUBUS_OFFERS", "value": "/etc/gpubus/config/offers.yaml"} in container["env"]
    assert {"name": "config", "mountPath": "/etc/gpubus/config", "readOnly": True} in container["volumeMounts"]
    (volume,) = (one for one in monitor["volumes"] if one["name"] == "config")
    file = tmp_path / volume["configMap"]["items"][0]["path"]
    file.write_text(objects["ConfigMap", volume["configMap"]["name"]]["data"][file.name])
    assert [one.key for one in read_offers(file)] == ["g///OnDemand"]
    without, _ = rendered({})
    assert "GPUBUS_OFFERS" not in str(without["Deployment", "tensor-fusion-sys-monitor"])


@pytest.mark.parametrize("signer", ["issuer", "certManager"])
def test_a_kube_scheduler_shows_a_certificate_of_its_own_and_gateways_want_that_name(signer: str) -> None:
    values = {"kubeScheduler": {"enabled": True}, "webhook": {"certManager": {"enabled": signer == "certManager"}}}
    objects, _ = rendered(values)
    gateway = objects["Deployment", "tensor-fusion-sys-webhook"]["spec"]["template"]["spec"]["containers"][0]["args"]
    wanted = gateway[gateway.index("--client-name") + 1]
    scheduler = objects["Deployment", "tensor-fusion-sys-kube-scheduler"]["spec"]["template"]["spec"]
    (secret,) = {volume["secret"]["secretName"] for volume in scheduler["volumes"] if "secret" in volume}
    assert secret == "tensor-fusion-sys-kube-scheduler-tls"
    if signer == "issuer":
        issuer = objects["Job", "tensor-fusion-sys-issuer"]["spec"]["template"]["spec"]["containers"][0]["args"]
        assert issuer[issuer.index("--kube-scheduler") + 1] == wanted
        rules = objects["Role", "tensor-fusion-sys-issuer"]["rules"]
        assert any(secret in rule.get("resourceNames", ()) for rule in rules)
    else:
        certificate = objects["Certificate", "tensor-fusion-sys-kube-scheduler"]["spec"]
        assert (certificate["secretName"], certificate["dnsNames"]) == (secret, [wanted])
