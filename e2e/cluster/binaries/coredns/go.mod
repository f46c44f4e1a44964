module github.com/weir-storage/weir/e2e/cluster/binaries/coredns

go 1.26.0

require github.com/coredns/coredns v1.12.1
