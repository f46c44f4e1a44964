// Package provisioner pins the CSI external-provisioner, the sidecar that turns claims into CreateVolume calls; set-up
// builds the module's tool from it.
package provisioner
