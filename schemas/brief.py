"""A decision in one line, the same wherever people meet it: on the pod as a Kubernetes Event, and in ``gpubus why``."""

from schemas.decision import Decision


def brief(decision: Decision) -> str:
    """Return where a pod went and why there, or why it went nowhere, was released or evicted, and what would help."""
    if decision.outcome == "allocated":
        gpus = ", ".join(str(gpu.index) for gpu in decision.gpus)
        where = f"{decision.node}, GPU {gpus}" if gpus else decision.node
        return f"Assigned to {where}" + (f": {decision.message}" if decision.message else "")
    said = decision.message
    if decision.reason and not said.startswith(decision.reason):
        said = f"{decision.reason}: {said}" if said else decision.reason
    return f"{said}. {decision.help}" if decision.help else said
