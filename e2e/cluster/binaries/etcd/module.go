// Package etcd pins the etcd server that the cluster's nodes and the controller tests run; set-up builds the module's
// tool from it.
package etcd
