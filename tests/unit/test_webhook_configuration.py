"""The webhook's configuration as the command prints it; what the API server makes of it is tested against a real one."""

import trustme
import yaml

from deploy.cli.main import main


def test_the_configuration_names_the_service_and_leaves_its_namespace_out(tmp_path, capsys):
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    code = main(["schema", "webhook", "--service", "sys/gateway", "--ca", str(tmp_path / "ca.crt"), "--no-hami"])
    (hook,) = yaml.safe_load(capsys.readouterr().out)["webhooks"]
    assert code == 0
    assert hook["clientConfig"]["service"] == {
        "namespace": "sys",
        "name": "gateway",
        "path": "/mutate-v1-pod",
        "port": 443,
    }
    assert hook["namespaceSelector"]["matchExpressions"][0]["values"] == ["kube-system", "sys"]
    assert hook["failurePolicy"] == "Fail"
    assert "nvidia.com/gpu" not in hook["matchConditions"][0]["expression"]


def test_pods_with_native_limits_are_sent_where_they_may_be_migrated(tmp_path, capsys):
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    arguments = ["schema", "webhook", "--service", "sys/gateway", "--ca", str(tmp_path / "ca.crt")]
    sent = {}
    for options in ((), ("--no-hami",), ("--auto-migration",), ("--no-hami", "--auto-migration")):
        assert main([*arguments, *options]) == 0
        (hook,) = yaml.safe_load(capsys.readouterr().out)["webhooks"]
        expression = hook["matchConditions"][0]["expression"]
        names = ("nvidia.com/gpu", "nvidia.com/gpumem", "amd.com/gpu")
        sent[options] = [name for name in names if f"'{name}'" in expression]
    assert sent == {
        (): ["nvidia.com/gpu", "nvidia.com/gpumem"],
        ("--no-hami",): [],
        ("--auto-migration",): ["nvidia.com/gpu", "nvidia.com/gpumem", "amd.com/gpu"],
        ("--no-hami", "--auto-migration"): ["nvidia.com/gpu", "amd.com/gpu"],
    }


def test_resources_that_providers_name_are_sent_in_place_of_the_known_ones(tmp_path, capsys):
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    arguments = ["schema", "webhook", "--service", "sys/gateway", "--ca", str(tmp_path / "ca.crt"), "--no-hami"]
    assert main([*arguments, "--auto-migration", "--native", "huawei.com/Ascend910"]) == 0
    (hook,) = yaml.safe_load(capsys.readouterr().out)["webhooks"]
    expression = hook["matchConditions"][0]["expression"]
    assert "['huawei.com/Ascend910'].exists" in expression
    assert "amd.com/gpu" not in expression


def test_the_priority_classes_are_those_that_admission_gives(capsys):
    assert main(["schema", "priorityclasses"]) == 0
    classes = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {one["metadata"]["name"]: one["value"] for one in classes} == {
        "tensor-fusion-medium": 0,
        "tensor-fusion-high": 10_000,
        "tensor-fusion-critical": 100_000,
        "tensor-fusion-placeholder": -10,
    }


def test_what_cannot_be_rendered_is_said_in_one_line(tmp_path, capsys):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    authority.private_key_pem.write_to_path(tmp_path / "ca.key")
    (tmp_path / "junk").write_bytes(b"\x7fELF")
    ca, service = ["--ca", str(tmp_path / "ca.crt")], ["--service", "a/b"]
    for arguments, says in (
        ([*ca], "--service NAMESPACE/NAME, or --url"),
        (["--ca", str(tmp_path / "ca.key"), *service], "holds a private key"),
        (["--ca", str(tmp_path / "junk"), *service], "holds no certificate"),
        ([*ca, "--service", "a/B_X"], "write NAMESPACE/NAME"),
        ([*ca, "--url", "https://["], "write one such as https://"),
        ([*ca, *service, "--name", "bad name!"], "--name is 'bad name!'"),
        ([*ca, *service, "--exclude", "UPPER case"], "--exclude is 'UPPER case'"),
        ([*ca, "--service", "x"], "write NAMESPACE/NAME"),
        ([*ca, "--url", "http://x"], "https:// only"),
        ([*ca, "--service", "a/b", "--timeout", "99"], "1 to 30"),
        ([*ca, *service, "--native", "a/b"], "--native is for --auto-migration"),
        ([*ca, *service, "--auto-migration", "--native", "a'b"], "write the name of a resource"),
        (["--ca", "/nowhere", "--service", "a/b"], "cannot be read"),
    ):
        assert main(["schema", "webhook", *arguments]) == 2
        assert says in capsys.readouterr().err
