"""Makes the documents. Pure: the same types give the same bytes, so a committed copy that differs is out of date."""

from typing import Any, Final

import msgspec

from bus.streams import StreamLimits, declarations
from schemas.event import Event
from schemas.registry import EVENT_TYPES

ASYNCAPI: Final = "3.0.0"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

CHANNELS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "node": ("gpubus.state.node.{node}", "gpubus.node.v1", ("node",)),
    "gpu": ("gpubus.state.gpu.{node}", "gpubus.gpu.v1", ("node",)),
    "pool": ("gpubus.state.pool.{pool}", "gpubus.pool.v1", ("pool",)),
    "pod": ("gpubus.state.pod.{namespace}.{pod}", "gpubus.pod.v1", ("namespace", "pod")),
    "waiting": ("gpubus.state.waiting.{pool}.{namespace}.{pod}", "gpubus.waiting.v1", ("pool", "namespace", "pod")),
    "quota": ("gpubus.state.quota.{namespace}.{quota}", "gpubus.quota.v1", ("namespace", "quota")),
    "disruption": ("gpubus.state.disruption.{namespace}.{budget}", "gpubus.disruption.v1", ("namespace", "budget")),
    "namespace": ("gpubus.state.namespace.{namespace}", "gpubus.namespace.v1", ("namespace",)),
    "client": ("gpubus.state.client.{namespace}.{pod}", "gpubus.client.v1", ("namespace", "pod")),
    "connection": (
        "gpubus.state.connection.{namespace}.{connection}",
        "gpubus.connection.v1",
        ("namespace", "connection"),
    ),
    "use": ("gpubus.state.use.{namespace}.{workload}", "gpubus.use.v1", ("namespace", "workload")),
    "presence": ("gpubus.state.allocator.{allocator}", "gpubus.presence.v1", ("allocator",)),
    "ledgerNode": ("gpubus.ledger.node.{node}", "gpubus.ledger.node.v1", ("node",)),
    "ledgerQuota": ("gpubus.ledger.quota.{namespace}", "gpubus.ledger.quota.v1", ("namespace",)),
    "ledgerGang": ("gpubus.ledger.gang.{gang}", "gpubus.ledger.gang.v1", ("gang",)),
    "drift": ("gpubus.drift.{node}", "gpubus.drift.v1", ("node",)),
    "notice": ("gpubus.notice.{namespace}.{pod}", "gpubus.notice.v1", ("namespace", "pod")),
    "alert": ("gpubus.alert.{rule}", "gpubus.alert.v1", ("rule",)),
    "decision": ("gpubus.decision.{namespace}.{pod}", "gpubus.decision.v1", ("namespace", "pod")),
    "journal": ("gpubus.journal.{allocator}", "gpubus.journal.v1", ("allocator",)),
    "shadowDecision": (
        "gpubus.shadow.decision.{shadow}.{namespace}.{pod}",
        "gpubus.decision.v1",
        ("shadow", "namespace", "pod"),
    ),
    "shadowReport": ("gpubus.shadow.report.{shadow}", "gpubus.shadow.v1", ("shadow",)),
    "usage": ("gpubus.usage.gpu.{node}", "gpubus.usage.v1", ("node",)),
    "capacity": ("gpubus.capacity.{pool}", "gpubus.capacity.v1", ("pool",)),
    "schedule": ("gpubus.work.schedule.{pool}", "gpubus.schedule.v1", ("pool",)),
    "release": ("gpubus.work.release.{node}", "gpubus.release.v1", ("node",)),
    "evict": ("gpubus.work.evict.{node}", "gpubus.evict.v1", ("node",)),
    "deadLetter": ("gpubus.dead.{stream}.{sequence}", "gpubus.dead.v1", ("stream", "sequence")),
}
"""Channels that others may build on: the subject, the event type, and the parameters of the subject."""


def json_schema() -> dict[str, Any]:
    """Return every event as JSON Schema: one of them, told apart by ``type``, with all definitions."""
    return {"$schema": DIALECT, "title": "gpubus events", **_components("#/$defs/")}


def _components(prefix: str) -> dict[str, Any]:
    names = list(EVENT_TYPES)
    envelope_of: Any = Event
    schemas, parts = msgspec.json.schema_components(
        [envelope_of[EVENT_TYPES[name]] for name in names], ref_template=prefix + "{name}"
    )
    events = {}
    for name, schema in zip(names, schemas, strict=True):
        envelope = parts.pop(schema["$ref"].removeprefix(prefix)) if "$ref" in schema else dict(schema)
        envelope["properties"] = {**envelope["properties"], "type": {"const": name}}
        envelope["title"] = name
        events[name] = envelope
    one_of = [{"$ref": prefix + name} for name in names]
    return {"oneOf": one_of, "$defs": dict(sorted((events | parts).items()))}


def asyncapi(version: str) -> dict[str, Any]:
    """Return the AsyncAPI document: channels, what is received on them, and the streams that hold them.

    Args:
        version: Version of gpubus.
    """
    defs = _components("#/components/schemas/")["$defs"]
    streams = {subject: config.name for config in declarations(StreamLimits()) for subject in config.subjects or ()}
    channels, operations, messages = {}, {}, {}
    for name, (address, event, parameters) in CHANNELS.items():
        stream = next(stream for subject, stream in streams.items() if _within(address, subject))
        channels[name] = {
            "address": address,
            "description": f"Stored in the stream {stream}. Names are encoded as subject tokens: =XX stands for a byte.",
            "messages": {"event": {"$ref": f"#/components/messages/{event}"}},
            "parameters": {parameter: {"description": f"Name of the {parameter}."} for parameter in parameters},
        }
        operations[f"receive{name[0].upper()}{name[1:]}"] = {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{name}"},
        }
        messages[event] = {
            "name": event,
            "contentType": "application/cloudevents+json",
            "summary": (EVENT_TYPES[event].__doc__ or "").partition("\n")[0],
            "payload": {"$ref": f"#/components/schemas/{event}"},
        }
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": "gpubus",
            "version": version,
            "description": "Events of the GPU control plane, as CloudEvents 1.0 in JSON on NATS JetStream.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/cloudevents+json",
        "servers": {"nats": {"host": "127.0.0.1:4222", "protocol": "nats"}},
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": defs},
    }


def _within(address: str, subject: str) -> bool:
    return address.startswith(subject.removesuffix(">"))
