// Package resizer pins the CSI external-resizer, the sidecar that turns a grown claim into ControllerExpandVolume;
// set-up builds the module's tool. It is a module of its own because it needs a newer Kubernetes client than the cluster.
package resizer
