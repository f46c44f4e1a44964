#!/usr/bin/env bash
# Checks that the cluster can do what the story needs of it: three schedulable nodes, pods of one node reaching pods of
# another, names and services, mounts that propagate from a pod to its node, /dev/fuse, and loaded images.
set -euo pipefail
# shellcheck source=setup/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../setup/steps.sh"

here=$WEIR_REPO/e2e/cluster
export KUBECONFIG=${KUBECONFIG:-$WEIR_REPO/target/kubeconfig}
export PATH=$WEIR_CACHE/bin:$PATH
space=cluster-check
# For each wait, on a busy machine.
DEADLINE=180s

in_pod() {
    local pod=$1
    shift
    kubectl --namespace "$space" exec "$pod" -- "$@"
}

# probe NODE: the manifest of a privileged pod on that node which answers on port 8080 and shares a directory with it.
probe() {
    cat <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: probe-$1
  namespace: $space
  labels: {app: probe}
spec:
  nodeName: $1
  terminationGracePeriodSeconds: 0
  containers:
    - name: probe
      image: $BASE_IMAGE
      imagePullPolicy: Never
      command:
        - perl
        - -MIO::Socket::INET
        - -e
        - my \$s = IO::Socket::INET->new(LocalPort => 8080, Listen => 8, ReuseAddr => 1) or die; 1 while \$s->accept
      securityContext: {privileged: true}
      volumeMounts:
        - {name: shared, mountPath: /shared, mountPropagation: Bidirectional}
  volumes:
    - name: shared
      hostPath: {path: /var/lib/cluster-check, type: DirectoryOrCreate}
---
YAML
}

clean_up() {
    kubectl delete namespace "$space" --ignore-not-found --wait=true --timeout="$DEADLINE" >/dev/null
}

mapfile -t nodes < <(kubectl get nodes --output 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}')
((${#nodes[@]} == 3)) || fail "the cluster has ${#nodes[@]} nodes, not 3: run 'e2e/cluster/cluster.sh down' and 'up'"
"$here/cluster.sh" load "$BASE_IMAGE"
trap clean_up EXIT
kubectl create namespace "$space" >/dev/null
for node in "${nodes[@]}"; do
    probe "$node"
done | kubectl apply -f - >/dev/null
kubectl --namespace "$space" wait --for=condition=Ready pods --all --timeout="$DEADLINE" >/dev/null
say "3 nodes run pods of a loaded image"

mapfile -t addresses < <(kubectl --namespace "$space" get pods \
    --output 'jsonpath={range .items[*]}{.status.podIP}{"\n"}{end}')
for node in "${nodes[@]}"; do
    for address in "${addresses[@]}"; do
        in_pod "probe-$node" timeout 20 bash -c "exec 3<>/dev/tcp/$address/8080" ||
            fail "a pod on $node does not reach the pod at $address: look at the pod-network pods' logs"
    done
    in_pod "probe-$node" timeout 20 getent hosts kubernetes.default.svc.cluster.local >/dev/null ||
        fail "a pod on $node can't resolve a service's name: look at the logs of coredns and kube-proxy"
    in_pod "probe-$node" timeout 20 bash -c 'exec 3<>"/dev/tcp/kubernetes.default.svc/443"' ||
        fail "a pod on $node does not reach the API server's service: look at the logs of kube-proxy"
done
say "pods reach pods and services across nodes, by name"

for node in "${nodes[@]}"; do
    in_pod "probe-$node" bash -c 'exec 3<>/dev/fuse' || fail "/dev/fuse can't be opened in a pod on $node"
    in_pod "probe-$node" bash -c 'mkdir -p /shared/mounted && mount -t tmpfs check /shared/mounted && touch /shared/mounted/file'
    docker exec "$node" test -f /var/lib/cluster-check/mounted/file ||
        fail "a mount in a pod on $node does not reach the node: mount propagation does not work"
    in_pod "probe-$node" umount /shared/mounted
done
say "mounts propagate from pods to nodes, and /dev/fuse opens"
