#!/bin/sh
# Pod to pod in a cluster of Kind: no privilege, no device plugin. RNIC_SOURCE as in the Dockerfile.
set -eu
kind create cluster
docker build --build-arg RNIC_SOURCE="$RNIC_SOURCE" -t rnic-tests ..
kind load docker-image rnic-tests
kubectl apply -f pods.yaml
kubectl wait --for=condition=complete --timeout=180s job/rnic-client
kubectl logs job/rnic-client
