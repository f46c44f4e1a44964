#!/usr/bin/env bash
# The pod network of one node: a CNI configuration from the node's own range, a route to every other node's range, and
# one masquerading rule for what leaves the cluster. All nodes share one link, so routes need no tunnel.
#
# Environment: NODE_NAME, POD_SUBNET, CONTROL_PLANE_ENDPOINT (host:port, so that it needs no kube-proxy to start).
set -euo pipefail

# Pause before the node list is watched anew, when the API server was away. Seconds.
RETRY=2

credentials=/var/run/secrets/kubernetes.io/serviceaccount

# api ARGUMENT...: kubectl as this pod's service account, with the token of this moment (they expire hourly).
api() {
    kubectl --server="https://$CONTROL_PLANE_ENDPOINT" --certificate-authority="$credentials/ca.crt" \
        --token="$(<"$credentials/token")" "$@"
}

configure_cni() {
    local range=$1 target=/etc/cni/net.d/10-ptp.conflist
    cat >"$target.new" <<CONF
{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [[{"subnet": "$range"}]]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
CONF
    mv "$target.new" "$target"
}

masquerade() {
    local rule=(POSTROUTING -s "$POD_SUBNET" ! -d "$POD_SUBNET" -j MASQUERADE
        -m comment --comment "pods to outside the cluster")
    iptables -w -t nat -C "${rule[@]}" 2>/dev/null || iptables -w -t nat -A "${rule[@]}"
}

# node NAME RANGE ADDRESS: takes up what the API server says of one node.
node() {
    local name=$1 range=${2:-} address=${3:-}
    [[ -n $range && -n $address ]] || return 0
    if [[ $name == "$NODE_NAME" ]]; then
        configure_cni "$range"
    else
        ip route replace "$range" via "$address"
    fi
}

sysctl -qw net.ipv4.ip_forward=1 2>/dev/null || echo 1 >/proc/sys/net/ipv4/ip_forward
masquerade
while true; do
    # shellcheck disable=SC2312  # an API server that is away ends the watch, and the loop takes it up again
    api get nodes --watch --output \
        'jsonpath={.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}' |
        while read -r name range address; do
            node "$name" "$range" "$address"
        done || true
    sleep "$RETRY"
done
