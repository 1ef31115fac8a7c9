"""The webhook's configuration as the command prints it; what the API server makes of it is tested against a real one."""

import yaml

from deploy.cli.main import main


def test_the_configuration_names_the_service_and_leaves_its_namespace_out(tmp_path, capsys):
    (tmp_path / "ca.crt").write_text("PEM")
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


def test_what_cannot_be_rendered_is_said_in_one_line(tmp_path, capsys):
    (tmp_path / "ca.crt").write_text("PEM")
    ca = ["--ca", str(tmp_path / "ca.crt")]
    for arguments, says in (
        ([*ca], "by its Service or by its URL"),
        ([*ca, "--service", "x"], "write NAMESPACE/NAME"),
        ([*ca, "--url", "http://x"], "https:// only"),
        ([*ca, "--service", "a/b", "--timeout", "99"], "1 to 30"),
        (["--ca", "/nowhere", "--service", "a/b"], "cannot be read"),
    ):
        assert main(["schema", "webhook", *arguments]) == 2
        assert says in capsys.readouterr().err
