#!/usr/bin/env bash
# Build kube-apiserver, kube-scheduler, kube-controller-manager and etcd from their published Go modules, for
# tests/integration. What is there already is left alone. Prints the directory; see tests/assets/README.md.
set -euo pipefail
cd "$(dirname "$0")"

KUBE=$(sed -n 's/^require k8s.io\/kubernetes //p' kube/go.mod)
ETCD=$(sed -n 's/^require go.etcd.io\/etcd\/server\/v3 //p' etcd/go.mod)
DIR=${GPUBUS_TEST_ASSETS:-${XDG_CACHE_HOME:-$HOME/.cache}/gpubus/assets}/kube-$KUBE-etcd-$ETCD

say() { printf 'test-assets: %s\n' "$*" >&2; }

command -v go >/dev/null || { say "no Go found: install Go 1.26, or set KUBEBUILDER_ASSETS to a directory with the binaries"; exit 1; }
mkdir -p "$DIR"
# One build at a time; whoever waits finds everything built.
exec 9>"$DIR/.lock"
flock 9

# Kubernetes 1.36 says godebug default=go1.26: built with 1.27 its OpenAPI comes out corrupt.
export GOTOOLCHAIN=${GOTOOLCHAIN:-go1.26.8} GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0

build() { # NAME MODULE-DIR PACKAGE LDFLAGS
    [ -x "$DIR/$1" ] && return
    say "building $1 (minutes; once)"
    (cd "$2" && go build -o "$DIR/.$1.new" -ldflags "-s -w $4" "$3")
    mv "$DIR/.$1.new" "$DIR/$1"
}

build etcd etcd go.etcd.io/etcd/server/v3 ""
for name in kube-apiserver kube-scheduler kube-controller-manager; do
    build "$name" kube "k8s.io/kubernetes/cmd/$name" "-X k8s.io/component-base/version.gitVersion=$KUBE"
done
echo "$DIR"
