"""What is out of date: hashes of what members are made from.

Only what changes a member counts. The order of keys, nulls and the number of replicas do not: upstream recreates workers
when only their number changes.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from schemas.rollout import Member, Rollout, Template

_LENGTH: Final = 16
"""Hexadecimal digits: it has to fit a label, and 64 bits tell templates apart."""


def make_template(
    rendered: Mapping[str, Any],
    revisions: Mapping[str, str] | None = None,
    images: Mapping[str, str] | None = None,
) -> Template:
    """Return a template under its hash.

    Args:
        rendered: The rendered template, JSON values only.
        revisions: Revision of each vendor's provider configuration; changing one rides the same path as any other change.
        images: Images that these revisions name, by vendor and use, kept so that a way back leads to them.
    """
    revisions = dict(revisions or {})
    return Template(
        hash=template_hash(rendered, revisions), rendered=dict(rendered), revisions=revisions, images=dict(images or {})
    )


def template_hash(rendered: Mapping[str, Any], revisions: Mapping[str, str]) -> str:
    """Return the hash by which a template is told from others."""
    return _digest({"template": _without_replicas(rendered), "revisions": revisions})


def member_hashes(template: Template) -> Callable[[Member], str]:
    """Return what tells the hash that a member has when it is made from ``template``.

    It depends on its own vendor's revision alone, on its node's isolation mode and on what its workload adds.
    """
    base = _digest(_without_replicas(template.rendered))
    known: dict[tuple[str, str], str] = {}

    def hash_of(member: Member) -> str:
        if member.overrides:
            return _variant(base, template, member)
        kind = member.vendor, member.isolation
        if kind not in known:
            known[kind] = _variant(base, template, member)
        return known[kind]

    return hash_of


def made_from(record: Rollout) -> Template:
    """Return what new members are made from while a rollout stands where it stands.

    A rollout that has stopped spreads its template no further: new members get the one that all had before, if it is known.
    """
    stopped = record.phase in ("halted", "aborted") and not record.back
    return record.previous if stopped and record.previous is not None else record.target


def _variant(base: str, template: Template, member: Member) -> str:
    return _digest(
        {
            "template": base,
            "revision": template.revisions.get(member.vendor),
            "isolation": member.isolation or None,
            "overrides": _without_replicas(member.overrides) or None,
        }
    )


def _without_replicas(rendered: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in rendered.items() if key != "replicas"}
    if isinstance(spec := kept.get("spec"), Mapping):
        kept["spec"] = {key: value for key, value in spec.items() if key != "replicas"}
    return kept


def _digest(value: object) -> str:
    text = json.dumps(_present(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def _present(value: object) -> object:
    """A null says the same as leaving the key out."""
    if isinstance(value, Mapping):
        return {key: _present(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_present(inner) for inner in value]
    return value
