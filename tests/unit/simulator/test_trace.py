"""Traces in the openb format: what is read, and that everything malformed is refused with its place."""

from pathlib import Path

import pytest

from producers.simulator.csvfile import TraceError
from producers.simulator.trace import NODES_FILE, PODS_FILE, Trace, TraceNode, TracePod, read_trace

NODE_HEADER = "sn,cpu_milli,memory_mib,gpu,model"
POD_HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
)
NODE = "n-0,96000,393216,8,G2"
POD = "p-0,4000,8192,1,460,,LS,Running,10,110,30"


def write(directory: Path, nodes: str, pods: str, pods_file: str = PODS_FILE) -> Path:
    (directory / NODES_FILE).write_text(nodes)
    (directory / pods_file).write_text(pods)
    return directory


def test_reads_nodes_and_pods(tmp_path: Path) -> None:
    nodes = f"{NODE_HEADER}\n{NODE}\nn-1,64000,262144,0,\n"
    pods = f"{POD_HEADER}\n{POD}\np-1,1000,1024,2,1000,T4|V100M32,BE,Pending,7,57,\np-2,1000,1024,0,0,,,Running,8,8,8\n"
    assert read_trace(write(tmp_path, nodes, pods)) == Trace(
        nodes=[
            TraceNode(name="n-0", cpu_milli=96000, memory_mib=393216, gpus=8, model="G2"),
            TraceNode(name="n-1", cpu_milli=64000, memory_mib=262144, gpus=0, model=""),
        ],
        pods=[
            TracePod(
                name="p-0", cpu_milli=4000, memory_mib=8192, num_gpu=1, gpu_milli=460, arrives_s=10, runs_s=80, qos="LS"
            ),
            TracePod(
                name="p-1",
                cpu_milli=1000,
                memory_mib=1024,
                num_gpu=2,
                gpu_milli=1000,
                arrives_s=7,
                runs_s=50,
                gpu_spec=("T4", "V100M32"),
                qos="BE",
            ),
            TracePod(name="p-2", cpu_milli=1000, memory_mib=1024, num_gpu=0, gpu_milli=0, arrives_s=8, runs_s=0),
        ],
    )


def test_pods_without_times_arrive_one_second_apart_and_never_end(tmp_path: Path) -> None:
    pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np-0,1,1,1,500\np-1,1,1,8,1000\n"
    trace = read_trace(write(tmp_path, f"{NODE_HEADER}\n{NODE}\n", pods, "multi.csv"), "multi.csv")
    assert [(pod.arrives_s, pod.runs_s) for pod in trace.pods] == [(0, None), (1, None)]


def test_takes_what_spreadsheets_add(tmp_path: Path) -> None:
    write(tmp_path, "", f"{POD_HEADER}\r\n{POD}\r\n\r\n")
    (tmp_path / NODES_FILE).write_bytes(b"\xef\xbb\xbf" + f'{NODE_HEADER},remark\n{NODE},"a, b"\n'.encode())
    assert [node.name for node in read_trace(tmp_path).nodes] == ["n-0"]


def pod(**changed: str) -> str:
    fields = dict(zip(POD_HEADER.split(","), POD.split(","), strict=True)) | changed
    return ",".join(fields.values())


def node(**changed: str) -> str:
    fields = dict(zip(NODE_HEADER.split(","), NODE.split(","), strict=True)) | changed
    return ",".join(fields.values())


@pytest.mark.parametrize(
    ("row", "column", "value", "expected"),
    [
        (pod(name=""), "name", "", "a name"),
        (pod(name=" "), "name", " ", "a name"),
        (pod(name="p-first"), "name", "p-first", "a name of its own, line 2 has the same"),
        (pod(cpu_milli="-1"), "cpu_milli", "-1", "a whole number from 0 to 999999999999"),
        (pod(cpu_milli=""), "cpu_milli", "", "a whole number"),
        (pod(cpu_milli="4.5"), "cpu_milli", "4.5", "a whole number"),
        (pod(cpu_milli="1e3"), "cpu_milli", "1e3", "a whole number"),
        (pod(cpu_milli="1_000"), "cpu_milli", "1_000", "a whole number"),
        (pod(cpu_milli="\u0661"), "cpu_milli", "\u0661", "a whole number"),
        (pod(memory_mib=" 1"), "memory_mib", " 1", "a whole number"),
        (pod(memory_mib="1" + 12 * "0"), "memory_mib", "1" + 12 * "0", "a whole number"),
        (pod(num_gpu="3", gpu_milli="1000"), "num_gpu", "3", "one of 0, 1, 2, 4, 8"),
        (pod(num_gpu="16", gpu_milli="1000"), "num_gpu", "16", "one of 0, 1, 2, 4, 8"),
        (pod(num_gpu="-1"), "num_gpu", "-1", "a whole number"),
        (pod(gpu_milli="1001"), "gpu_milli", "1001", "a whole number from 0 to 1000"),
        (pod(gpu_milli="-460"), "gpu_milli", "-460", "a whole number from 0 to 1000"),
        (pod(gpu_milli="0"), "gpu_milli", "0", "1 to 1000, because num_gpu is 1"),
        (pod(num_gpu="2"), "gpu_milli", "460", "1000, because num_gpu is 2"),
        (pod(num_gpu="0"), "gpu_milli", "460", "0, because num_gpu is 0"),
        (pod(gpu_spec="RTX9"), "gpu_spec", "RTX9", "one of the GPU models T4, P100"),
        (pod(gpu_spec="T4|"), "gpu_spec", "T4|", "one of the GPU models T4, P100"),
        (pod(qos="VIP"), "qos", "VIP", "one of LS, BE, Burstable, Guaranteed, or nothing"),
        (pod(creation_time=""), "creation_time", "", "a whole number"),
        (pod(deletion_time="soon"), "deletion_time", "soon", "a whole number"),
        (pod(deletion_time="9"), "deletion_time", "9", "10 (creation_time) or later"),
        (pod(scheduled_time="9"), "scheduled_time", "9", "10 (creation_time) to 110 (deletion_time), or nothing"),
        (pod(scheduled_time="111"), "scheduled_time", "111", "10 (creation_time) to 110 (deletion_time), or nothing"),
        (POD.rsplit(",", 1)[0], "scheduled_time", "", "11 fields as in the header, found 10"),
        (POD + ",x", "#12", "x", "11 fields as in the header, found 12"),
    ],
)
def test_refuses_a_malformed_pod(tmp_path: Path, row: str, column: str, value: str, expected: str) -> None:
    write(tmp_path, f"{NODE_HEADER}\n{NODE}\n", f"{POD_HEADER}\n{pod(name='p-first')}\n{row}\n")
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path)
    place = f"{tmp_path / PODS_FILE}, line 3, column {column}, value {value!r}: expected {expected}"
    assert str(refused.value).startswith(place)
    assert (refused.value.line, refused.value.column, refused.value.value) == (3, column, value)


@pytest.mark.parametrize(
    ("row", "column", "value", "expected"),
    [
        (node(sn=""), "sn", "", "a name"),
        (node(sn="n-first"), "sn", "n-first", "a name of its own, line 2 has the same"),
        (node(cpu_milli="many"), "cpu_milli", "many", "a whole number"),
        (node(memory_mib="-5"), "memory_mib", "-5", "a whole number"),
        (node(gpu="17"), "gpu", "17", "a whole number from 0 to 16"),
        (node(gpu="-8"), "gpu", "-8", "a whole number from 0 to 16"),
        (node(model=""), "model", "", "one of the GPU models T4, P100, V100M16"),
        (node(model="g2"), "model", "g2", "one of the GPU models T4, P100, V100M16"),
        ("n-1,1", "memory_mib", "", "5 fields as in the header, found 2"),
    ],
)
def test_refuses_a_malformed_node(tmp_path: Path, row: str, column: str, value: str, expected: str) -> None:
    write(tmp_path, f"{NODE_HEADER}\n{node(sn='n-first')}\n{row}\n", f"{POD_HEADER}\n{POD}\n")
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path)
    place = f"{tmp_path / NODES_FILE}, line 3, column {column}, value {value!r}: expected {expected}"
    assert str(refused.value).startswith(place)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ", line 1, value '': expected a header line with the columns name, cpu_milli"),
        (b"\n", ", line 1, value '': expected a header line with the columns name, cpu_milli"),
        (f"{POD_HEADER}\n\n".encode(), ", line 1: expected at least one row below the header"),
        (f"{POD_HEADER}\n{POD}\np-\xff".encode("latin-1"), ", line 3, value 'byte 0xff': expected UTF-8 text"),
        (f'{POD_HEADER}\n{POD}\n"p-1'.encode(), ", line 3, value 'unexpected end of data': expected well-formed CSV"),
        (b"name,cpu_milli\np,1\n", ", line 1, column memory_mib, value 'name,cpu_milli': expected the column once"),
        (
            f"{POD_HEADER},name\n".encode(),
            f", line 1, column name, value '{POD_HEADER},name': expected the column once",
        ),
        (
            POD_HEADER.replace(",deletion_time", "").encode(),
            f", line 1, column deletion_time, value '{POD_HEADER.replace(',deletion_time', '')}': expected the column",
        ),
        (
            POD_HEADER.replace(",qos", "").encode(),
            f", line 1, column qos, value '{POD_HEADER.replace(',qos', '')}': expected the column once",
        ),
    ],
)
def test_refuses_a_malformed_file(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path, f"{NODE_HEADER}\n{NODE}\n", "")
    (tmp_path / PODS_FILE).write_bytes(content)
    with pytest.raises(TraceError) as refused:
        read_trace(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / PODS_FILE}{message}")


def test_refuses_missing_files(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(TraceError, match=rf"^{nowhere}: expected a directory with {NODES_FILE} and a pod list$"):
        read_trace(nowhere)
    with pytest.raises(TraceError, match=rf"^{tmp_path / NODES_FILE}: expected a file of this name$"):
        read_trace(tmp_path)
    write(tmp_path, f"{NODE_HEADER}\n{NODE}\n", f"{POD_HEADER}\n{POD}\n")
    with pytest.raises(TraceError, match=rf"^{tmp_path / NODES_FILE}: expected a directory"):
        read_trace(tmp_path / NODES_FILE)
    with pytest.raises(TraceError, match=rf"^{tmp_path / 'other.csv'}: expected a file of this name$"):
        read_trace(tmp_path, "other.csv")


def test_an_unreadable_file_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    write(tmp_path, f"{NODE_HEADER}\n{NODE}\n", f"{POD_HEADER}\n{POD}\n")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(TraceError, match=r"value 'Permission denied': expected a file that can be read"):
        read_trace(tmp_path)


def test_a_long_value_is_not_repeated_in_full(tmp_path: Path) -> None:
    write(tmp_path, f"{NODE_HEADER}\n{NODE}\n", f"{POD_HEADER}\n{pod(cpu_milli='9' * 5000)}\n")
    with pytest.raises(
        TraceError, match=r"line 2, column cpu_milli, value '9{200}…': expected a whole number"
    ) as refused:
        read_trace(tmp_path)
    assert refused.value.value == "9" * 5000


@pytest.mark.parametrize("name", ["n" * 254, "bad\x00name", "two\x07bells"])
def test_names_that_no_cluster_has_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(
        f"sn,cpu_milli,memory_mib,gpu,model\n{name},1000,1024,1,T4\n"
    )
    (tmp_path / "openb_pod_list_default.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,0,0\n")
    with pytest.raises(TraceError, match=r"line 2.*sn"):
        read_trace(tmp_path)
