"""What a request may ask that this engine cannot promise yet.

A field that is read and then ignored would place a pod where it must not run. So such a request is refused, by name, until
the filter or policy behind the field exists.
"""

from typing import Final

from schemas.pod import GpuRequest

_UNSUPPORTED: Final = ("remote",)


def unsupported(request: GpuRequest) -> str:
    """Return the first field of a request that cannot be promised, or nothing if all can."""
    if request.partition_template and request.isolation != "partitioned":
        return "partition_template"
    if request.containers and request.isolation == "partitioned":
        return "containers"  # a partition is cut for a pod
    for field in _UNSUPPORTED:
        if getattr(request, field):
            return field
    return ""
