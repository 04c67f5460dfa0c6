#!/usr/bin/env bash
# A real cluster for the Kubernetes tests, by kind (https://kind.sigs.k8s.io), with the agent-sandbox controllers.
# Needs docker, kind and kubectl, and the network. CI and `make test` need none of it: they use tests/fake_kubernetes.
#   scripts/kind.sh up         make the cluster; its kubeconfig is written to .kind/kubeconfig
#   scripts/kind.sh test ...   run the Kubernetes tests on it (arguments go to pytest)
#   scripts/kind.sh down       delete the cluster
# KIND_IMAGE picks another version of Kubernetes than kind's own (kindest/node:v1.36.1), AGENT_SANDBOX another release.
set -euo pipefail
cd "$(dirname "$0")/.."

name=agentrl
kubeconfig="$PWD/.kind/kubeconfig"
releases="https://github.com/kubernetes-sigs/agent-sandbox/releases"
controllers="$releases/${AGENT_SANDBOX:+download/$AGENT_SANDBOX}"
[[ -n "${AGENT_SANDBOX:-}" ]] || controllers="$releases/latest/download"

need() {
  for tool in "$@"; do
    command -v "$tool" >/dev/null || { echo "error: $tool is not installed; scripts/kind.sh needs docker, kind and kubectl" >&2; exit 1; }
  done
}

case "${1:-}" in
  up)
    need docker kind kubectl
    mkdir -p .kind
    kind create cluster --name "$name" --kubeconfig "$kubeconfig" --wait 120s ${KIND_IMAGE:+--image "$KIND_IMAGE"} --config - <<'YAML'
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane}, {role: worker}, {role: worker}]
YAML
    export KUBECONFIG="$kubeconfig"
    kubectl apply -f "$controllers/sandbox-with-extensions.yaml"
    kubectl wait --for=condition=Available deployment --all --namespace agent-sandbox-system --timeout=180s
    echo "AGENTRL_TEST_KUBECONFIG=$kubeconfig"
    ;;
  test)
    [[ -f "$kubeconfig" ]] || { echo "error: no cluster; make one with: scripts/kind.sh up" >&2; exit 1; }
    shift
    AGENTRL_TEST_KUBECONFIG="$kubeconfig" .venv/bin/pytest tests/integration/test_kubernetes_*.py "$@"
    ;;
  down)
    need kind
    kind delete cluster --name "$name" --kubeconfig "$kubeconfig"
    rm -rf .kind
    ;;
  *)
    sed -n 's/^# \{0,1\}//p' "$0" | sed 1d
    exit 2
    ;;
esac
