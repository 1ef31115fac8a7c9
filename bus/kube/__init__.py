"""How Kubernetes is spoken to.

:mod:`bus.kube.config` finds the cluster, :mod:`bus.kube.client` calls it, :mod:`bus.kube.reflector` keeps a complete view of
one resource.
"""
