"""Manifests as people write them, brought to what the API server makes of them."""

from typing import Any


def with_quantities(value: Any, *, inside: bool = False) -> Any:
    """Return a manifest with resource amounts as text: Kubernetes takes numbers there too."""
    if isinstance(value, dict):
        return {
            key: with_quantities(entry, inside=inside or key in ("limits", "requests")) for key, entry in value.items()
        }
    if isinstance(value, list):
        return [with_quantities(entry, inside=inside) for entry in value]
    return str(value) if inside and isinstance(value, int | float) else value
