module github.com/weir-storage/weir/e2e/cluster/binaries/etcd

go 1.26.0

tool go.etcd.io/etcd/server/v3

require go.etcd.io/etcd/server/v3 v3.6.16
