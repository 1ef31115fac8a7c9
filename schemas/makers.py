"""Who has made a pod, by the API server's word: what a pod says of that itself, anybody may write who may create one."""

import msgspec

from schemas.kube.base import LabelSelector
from schemas.remote import Owner


class WhoMade(msgspec.Struct, frozen=True, kw_only=True):
    """Request to a watcher: is there a controller as a pod of ``namespace`` names it?"""

    namespace: str
    owner: Owner


class Made(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of a watcher.

    Attributes:
        top: Whose pods the controller's are: the Deployment above a ReplicaSet, the CronJob above a Job, else the controller
            itself. None if nothing is known of it.
        selector: Which pods the controller takes for its own; None if it does not say.
        problem: Why nothing is known; empty if ``top`` is.
        gone: Whether the API server itself has said that it has no controller of this name and UID. Every other problem is that
            nobody can say, which proves nothing against anybody.
    """

    top: Owner | None = None
    selector: LabelSelector | None = None
    problem: str = ""
    gone: bool = False
