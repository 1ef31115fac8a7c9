"""``gpubus simulate``: would this pod fit, where, and how many of its kind?"""

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.connect import JsonOption, NatsOption, StoreOption, open_bus, run
from deploy.cli.errors import NEGATIVE, InputError, NotFoundError
from deploy.cli.output import clean, make_console, print_json, show_fields, show_table, warn
from deploy.cli.when import AtOption, SequenceOption, cut_of

if TYPE_CHECKING:
    from consumers.allocator.inspector.view import View
    from deploy.replay.simulation import Outcome
    from schemas.kube.core import KubePod
    from schemas.pod import GpuRequest

MOST_REPLICAS = 100_000


def simulate(
    *,
    file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="The pod in YAML or JSON; - is stdin.")],
    replicas: Annotated[
        int, typer.Option("--replicas", metavar="N", min=1, max=MOST_REPLICAS, help="Place so many of its kind.")
    ] = 1,
    without: Annotated[
        list[str] | None, typer.Option("--without-node", metavar="NODE", help="As if this node were gone; repeatable.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="NAME", help="Pool of a pod that names none. [default: the only pool]"),
    ] = None,
    at: AtOption = None,
    seq: SequenceOption = None,
    as_json: JsonOption = False,
    nats: NatsOption = None,
    store: StoreOption = None,
) -> None:
    """Say whether a pod would fit, where, and how many of its kind, without placing anything.

    Exit code 1 when not all of them fit.

    \b
    Examples:
      gpubus simulate -f pod.yaml
      gpubus simulate -f pod.yaml --replicas 100 --without-node gpu-17
      kubectl get pod trainer-0 -o yaml | gpubus simulate -f - --at 15m
    """
    pod = _read(file)
    view = run(_load(at, seq, nats, store))
    request = _request(pod, view, pool)
    for node in without or ():
        if node not in view.snapshot.nodes():
            raise InputError(f"--without-node {node!r} is not known: `gpubus state --nodes` lists them")
    from deploy.replay.simulation import simulate as place

    namespace, name = pod.metadata.namespace or "default", pod.metadata.name or "pod"
    outcome = place(view, namespace, name, request, replicas=replicas, without=tuple(without or ()))
    if request.gang is not None:
        warn(f"the pod is looked at alone, and its gang needs {request.gang.min_members} members that all fit")
    if as_json:
        print_json({"request": request, "outcome": outcome})
    else:
        _show(outcome, request)
    if outcome.refusal is not None:
        raise typer.Exit(NEGATIVE)


def _read(file: Path) -> "KubePod":
    import msgspec
    import yaml

    from schemas.kube.core import KubePod
    from schemas.kube.manifest import with_quantities

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        manifest = with_quantities(yaml.safe_load(text))
        _check(file, manifest)
        return msgspec.convert(manifest, KubePod)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--file {file} cannot be read: {error}") from None
    except RecursionError:
        raise InputError(f"--file {file} is no pod: it is nested without end") from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InputError(f"--file {file} is no pod: {error}; write a manifest with kind: Pod") from None


def _check(file: Path, manifest: Any) -> None:
    """Name what people get wrong most often in a way that the decoder could not."""
    if not isinstance(manifest, dict):
        return
    kind = manifest.get("kind", "Pod")
    if kind != "Pod":
        raise InputError(f"--file {file} has kind {kind!r}: write a manifest with kind: Pod, such as a pod template's")
    meta = manifest.get("metadata")
    for part in ("annotations", "labels"):
        written = meta.get(part) if isinstance(meta, dict) else None
        for key, value in written.items() if isinstance(written, dict) else ():
            if not isinstance(value, str):
                raise InputError(f"--file {file}: {part[:-1]} {key} is {value!r}: write it in quotes")


async def _load(at: str | None, seq: int | None, nats: list[str] | None, store: Path | None) -> "View":
    from deploy.replay.simulation import load

    async with open_bus(nats, store) as bus:
        return await load(bus, await cut_of(bus, at, seq))


def _request(pod: "KubePod", view: "View", pool: str | None) -> "GpuRequest":
    from schemas.dialects import HamiConfig, RequestError, TensorFusionDefaults, parse_pod
    from schemas.kube.views import view_of

    pools = sorted(view.snapshot.pools())
    if not pools:
        raise NotFoundError(
            "no pool was known then or is now, so there is no place for any pod: `gpubus events 'gpubus.state.pool.>'` shows them"
        )
    default = pool or (pools[0] if len(pools) == 1 else "")
    try:
        found = parse_pod(
            view_of(pod),
            tensorfusion_defaults=TensorFusionDefaults(pool=default),
            hami_config=HamiConfig(pool=default),
        )
    except RequestError as error:
        raise InputError(str(error)) from None
    if found is None:
        raise InputError("the pod asks for no GPU: add tensor-fusion.ai annotations or nvidia.com resources")
    if not found.pool:
        raise InputError(f"the pod names no pool: add --pool with one of {', '.join(pools) or '(there is none)'}")
    return found


def _show(outcome: "Outcome", request: "GpuRequest") -> None:
    from deploy.cli.summary import grants
    from deploy.cli.summary import request as asked

    console = make_console()
    placed, refusal = outcome.placed, outcome.refusal
    verdict = "fits" if refusal is None else "does not fit"
    count = f"{len(placed)} of {outcome.asked} replicas fit" if outcome.asked > 1 else f"it {verdict}"
    console.print(f"{count}: {clean(asked(request))} in pool {clean(request.pool)}", style="bold")
    if len(placed) == 1:
        show_fields(console, [("node", placed[0].node), ("GPUs", grants(placed[0].gpus))])
    elif placed:
        rows = Counter(entry.node for entry in placed).most_common()
        show_table(console, "", ("node", "replicas>"), rows)
    if refusal is not None:
        show_fields(console, [("reason", refusal.reason), ("message", refusal.message), ("what helps", refusal.help)])
        filters = [[f.reason, f.nodes, f.gpus, ", ".join(f.examples)] for f in refusal.filters]
        show_table(console, "Refused by filters", ("reason", "nodes>", "GPUs>", "examples"), filters)
