"""What gateway and mutator say to each other about a pod that is to be created, and how the API server says it to us.

Source: ``admission.k8s.io/v1``; RFC 6902, JSON Patch.
"""

from typing import Any, Final, Literal

import msgspec

from schemas.pod import GpuRequest

REVIEW_VERSION: Final = "admission.k8s.io/v1"


class PatchOperation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation of a JSON patch."""

    op: Literal["add", "remove", "replace"]
    path: str
    value: Any = msgspec.UNSET


class Admit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Request to a mutator: what is to become of this pod?

    Attributes:
        uid: Of the admission request; the pod itself has none yet.
        namespace: Where it is to be created; the object may leave it out.
        pod: The pod as the API server sent it.
        dry_run: Nothing may come of it: no slot is taken.
    """

    uid: str
    namespace: str
    pod: msgspec.Raw
    dry_run: bool = False


class Admitted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of a mutator.

    Attributes:
        allowed: Whether the pod may be created.
        patch: What changes in it.
        message: Why it may not, for the user.
        code: HTTP status of a refusal.
        warnings: What the user should know although the pod is allowed.
    """

    allowed: bool
    patch: tuple[PatchOperation, ...] = ()
    message: str = ""
    code: int = 0
    warnings: tuple[str, ...] = ()


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """An :class:`Admitted` whose patch stays in JSON, for who only passes it on."""

    allowed: bool
    patch: msgspec.Raw = msgspec.Raw()
    message: str = ""
    code: int = 0
    warnings: tuple[str, ...] = ()


class Understood(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of a mutator to who asks what a pod would ask for, were it created.

    Attributes:
        request: What it asks for with everything that operators have set; None when it asks for no GPU or is refused.
        refusal: Why it would not be admitted, for the user; ``field``, ``value`` and ``fix`` are its parts.
        warnings: What the user should know.
    """

    request: GpuRequest | None = None
    refusal: str = ""
    field: str = ""
    value: str = ""
    fix: str = ""
    warnings: tuple[str, ...] = ()


class _Camel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    pass


class GroupVersionKind(_Camel, frozen=True):
    """What kind of object."""

    group: str = ""
    version: str = ""
    kind: str = ""


class ReviewRequest(_Camel, frozen=True):
    """``AdmissionRequest``, the parts that we read. ``object`` is missing when something is deleted."""

    uid: str
    kind: GroupVersionKind = GroupVersionKind()
    namespace: str = ""
    operation: str = "CREATE"
    dry_run: bool | None = None
    object: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class Review(_Camel, frozen=True):
    """``AdmissionReview`` as it comes in."""

    api_version: str
    kind: str
    request: ReviewRequest


class Status(_Camel, frozen=True):
    """``metav1.Status`` of a refusal: what the user of ``kubectl`` sees."""

    message: str
    code: int
    reason: str = ""


class ReviewResponse(_Camel, frozen=True):
    """``AdmissionResponse``; ``patch`` goes out in base64."""

    uid: str
    allowed: bool
    status: Status | None = None
    patch_type: str = ""
    patch: bytes = b""
    warnings: tuple[str, ...] = ()


class ReviewAnswer(_Camel, frozen=True, omit_defaults=False):
    """``AdmissionReview`` as it goes out."""

    response: ReviewResponse
    api_version: str = REVIEW_VERSION
    kind: str = "AdmissionReview"
