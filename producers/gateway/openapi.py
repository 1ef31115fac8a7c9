"""The OpenAPI document of the REST interface, made from what it serves. Pure: the same types give the same document."""

from typing import Any, Final, NamedTuple

import msgspec

from schemas.compatible import AllocationState, SimulateSchedule
from schemas.inspection import Allocations, Dump, Nodes, Pools, Problem, Query, Simulate
from schemas.views import Held, Listing, NodeView, PoolView, Simulation

OPENAPI: Final = "3.1.1"
VERSIONED: Final = "/api/v1"
DOCUMENT: Final = f"{VERSIONED}/openapi.json"

MEDIA_TYPES: Final = ("application/json", "application/yaml")
_REF: Final = "#/components/schemas/{name}"
_POD: Final = {
    "description": "A pod as kubectl apply takes it, read as admission would read it.",
    "type": "object",
    "properties": {
        "apiVersion": {"const": "v1"},
        "kind": {"const": "Pod"},
        "metadata": {"type": "object"},
        "spec": {"type": "object"},
    },
    "required": ["spec"],
}
_REFUSALS: Final = {
    "400": "The request cannot be understood.",
    "401": "Who asks has not said who they are.",
    "403": "Who asks may not.",
    "405": "The path takes another method.",
    "413": "The pod is too large.",
    "415": "The pod is in no language that is understood.",
    "421": "The request is meant for another host.",
    "422": "The pod would be refused at admission, or asks for no GPU.",
    "502": "The answer failed.",
    "503": "Nobody can answer just now.",
    "504": "No answer came in time.",
}
_OF_PODS: Final = frozenset({"413", "415", "422"})
_OF_INSPECTORS: Final = frozenset({"502", "504"})


class Operation(NamedTuple):
    """One thing that can be asked.

    Attributes:
        path: Where.
        query: What an inspector is asked: its fields are the query parameters, or for :class:`.Simulate` come from the pod.
        answer: Type of the answer.
        summary: One sentence.
    """

    path: str
    query: type[Query]
    answer: Any
    summary: str

    @property
    def method(self) -> str:
        """How, in lower case."""
        return "post" if self.query is Simulate else "get"

    @property
    def clear(self) -> bool:
        """Whether it is answered in our own words."""
        return self.path.startswith(VERSIONED)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of its query parameters."""
        return () if self.query is Simulate else self.query.__struct_fields__


OPERATIONS: Final = (
    Operation(f"{VERSIONED}/simulate", Simulate, Simulation, "Would this pod fit, and where, or what refuses it?"),
    Operation(f"{VERSIONED}/pools", Pools, Listing[PoolView], "All pools, and what there is in them."),
    Operation(f"{VERSIONED}/nodes", Nodes, Listing[NodeView], "Nodes with their GPUs and pods, by name."),
    Operation(f"{VERSIONED}/allocations", Allocations, Listing[Held], "What pods hold, by namespace and name."),
    Operation("/api/simulate-schedule", Simulate, SimulateSchedule, "The simulation in TensorFusion's words."),
    Operation("/api/allocation", Dump, AllocationState, "Everything that is allocated, in TensorFusion's words."),
)


def openapi(version: str) -> dict[str, Any]:
    """Return the document.

    Args:
        version: Version of gpubus.
    """
    answers, parts = msgspec.json.schema_components([*(one.answer for one in OPERATIONS), Problem], ref_template=_REF)
    problem = {"application/json": {"schema": answers[-1]}}
    paths: dict[str, Any] = {
        one.path: {one.method: _operation(one, answer, problem)}
        for one, answer in zip(OPERATIONS, answers[:-1], strict=True)
    }
    said = {"description": "This document.", "content": {"application/json": {"schema": {"type": "object"}}}}
    refusals = _refusals(problem, leave_out=_OF_PODS | _OF_INSPECTORS)
    paths[DOCUMENT] = {
        "get": {"operationId": "openapi", "summary": "This document.", "responses": {"200": said} | refusals}
    }
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "gpubus",
            "version": version,
            "description": "Questions about GPUs and pods. Compute is in thousandths of a TFLOPS, memory in bytes.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://localhost:8080"}],
        "security": [{}, {"bearer": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {**dict(sorted(parts.items())), "Pod": _POD},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _refusals(problem: dict[str, Any], *, leave_out: frozenset[str]) -> dict[str, Any]:
    return {
        code: {"description": text, "content": problem} for code, text in _REFUSALS.items() if code not in leave_out
    }


def _operation(one: Operation, answer: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    of_pod = one.query is Simulate
    refusals = _refusals(problem, leave_out=frozenset() if of_pod else _OF_PODS)
    found = {
        "operationId": one.path.removeprefix("/api/").replace("/", "-"),
        "summary": one.summary,
        "responses": {"200": {"description": one.summary, "content": {"application/json": {"schema": answer}}}}
        | refusals,
    }
    if of_pod:
        content = {media_type: {"schema": {"$ref": _REF.format(name="Pod")}} for media_type in MEDIA_TYPES}
        return found | {"requestBody": {"required": True, "content": content}}
    _, parts = msgspec.json.schema_components([one.query], ref_template=_REF)
    properties = parts[one.query.__name__]["properties"]
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in properties.items()
        if name != "ask"
    ]
    return found | ({"parameters": parameters} if parameters else {})
