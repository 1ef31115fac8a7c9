"""Admission reviews: bytes of the API server in, a question for the bus, and its answer as bytes again. No I/O."""

from typing import Final

import msgspec

from schemas.admission import (
    REVIEW_VERSION,
    Admit,
    Decided,
    Review,
    ReviewAnswer,
    ReviewRequest,
    ReviewResponse,
    Status,
)

_REASONS: Final = {400: "BadRequest", 403: "Forbidden", 422: "Invalid", 503: "ServiceUnavailable"}
_review = msgspec.json.Decoder(Review)
_json = msgspec.json.Encoder()


class BadReviewError(ValueError):
    """What came is no admission review that we can answer; the message says what was expected."""


def read(body: bytes) -> ReviewRequest:
    """Return the request of a review.

    Raises:
        BadReviewError: It is no JSON, no review, or one of another version.
    """
    try:
        review = _review.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReviewError(f"the body is no AdmissionReview: {error}") from None
    if review.kind != "AdmissionReview" or review.api_version != REVIEW_VERSION:
        raise BadReviewError(
            f"the body is {review.api_version!r} {review.kind!r}: send {REVIEW_VERSION} AdmissionReview "
            "(admissionReviewVersions of the webhook configuration)"
        )
    if not review.request.uid:
        raise BadReviewError("request.uid is empty: an answer could not be matched to it")
    return review.request


def concerns_us(request: ReviewRequest) -> bool:
    """Whether it is about a pod that is to be created; all else is waved through, whatever the configuration sends us."""
    return request.kind.kind == "Pod" and not request.kind.group and request.operation == "CREATE"


def question(request: ReviewRequest) -> Admit:
    """Return what to ask a mutator."""
    return Admit(uid=request.uid, namespace=request.namespace, pod=request.object, dry_run=bool(request.dry_run))


def answer(uid: str, admitted: Decided) -> bytes:
    """Return the answer to the review ``uid``."""
    patch = bytes(admitted.patch)
    code = admitted.code or 403
    reason = _REASONS.get(code, "")
    status = None if admitted.allowed else Status(message=admitted.message, code=code, reason=reason)
    response = ReviewResponse(
        uid=uid,
        allowed=admitted.allowed,
        status=status,
        patch_type="JSONPatch" if patch else "",
        patch=patch,
        warnings=admitted.warnings,
    )
    return _json.encode(ReviewAnswer(response=response))
