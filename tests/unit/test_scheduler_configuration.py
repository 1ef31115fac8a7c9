"""kube-scheduler's configuration as the command prints it; what kube-scheduler makes of it is tested against a real one."""

import base64

import trustme
import yaml

from deploy.cli.main import main


def test_the_configuration_sends_names_of_all_nodes_to_the_gateway(tmp_path, capsys):
    authority = trustme.CA().cert_pem
    authority.write_to_path(tmp_path / "ca.crt")
    options = ["--url", "https://gw.sys.svc:9443", "--ca", str(tmp_path / "ca.crt"), "--name", "gpus", "--lease", "sys"]
    options += ["--client-certificate", "/tls/tls.crt", "--client-key", "/tls/tls.key"]
    assert main(["schema", "scheduler", *options]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["percentageOfNodesToScore"] == 100
    assert found["leaderElection"] == {"leaderElect": True, "resourceName": "gpus", "resourceNamespace": "sys"}
    assert found["profiles"] == [{"schedulerName": "gpus"}]
    (extender,) = found["extenders"]
    assert extender["urlPrefix"] == "https://gw.sys.svc:9443/extender"
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)
    tls = extender["tlsConfig"]
    assert base64.b64decode(tls["caData"]) == authority.bytes()
    assert (tls["certFile"], tls["keyFile"]) == ("/tls/tls.crt", "/tls/tls.key")


def test_what_cannot_be_rendered_is_said_in_one_line(tmp_path, capsys):
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    ca, url = ["--ca", str(tmp_path / "ca.crt")], ["--url", "https://10.0.0.7:9443"]
    for arguments, says in (
        ([*ca, "--url", "http://10.0.0.7"], "write one such as https://10.0.0.7:9443"),
        ([*ca, "--url", "https://10.0.0.7/extender"], "with no path"),
        ([*ca, *url, "--name", "bad name"], "--name is 'bad name'"),
        ([*ca, *url, "--lease", "A/b"], "--lease is 'A/b'"),
        ([*ca, *url, "--client-key", "/tls/tls.key"], "give both or neither"),
        (["--ca", "/nowhere", *url], "cannot be read"),
    ):
        assert main(["schema", "scheduler", *arguments]) == 2
        assert says in capsys.readouterr().err
