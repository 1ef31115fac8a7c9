#!/usr/bin/env bash
# Build Alertmanager from its published Go module, for the tests that send alerts to a real one. Prints the binary's path.
# What is there already is left alone; without Go, install the Debian package prometheus-alertmanager instead.
set -euo pipefail

VERSION=v0.28.1
DIR=${GPUBUS_TEST_ASSETS:-${XDG_CACHE_HOME:-$HOME/.cache}/gpubus/assets}/alertmanager-$VERSION
[ -x "$DIR/alertmanager" ] && { echo "$DIR/alertmanager"; exit; }
command -v go >/dev/null || { echo 'test-assets: no Go found: install Go, or the package prometheus-alertmanager' >&2; exit 1; }
echo "test-assets: building alertmanager $VERSION (minutes; once)" >&2
mkdir -p "$DIR"
GOBIN="$DIR" GOFLAGS="-trimpath -buildvcs=false" CGO_ENABLED=0 go install "github.com/prometheus/alertmanager/cmd/alertmanager@$VERSION"
echo "$DIR/alertmanager"
