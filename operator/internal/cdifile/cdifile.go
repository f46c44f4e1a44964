// Package cdifile keeps the specifications by which container runtimes give the devices of claims to containers (CDI): one file for
// each claim of a driver.
package cdifile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

const (
	// Version is the oldest version of CDI that has all that is used here.
	Version = "0.5.0"
	// mode lets container runtimes read a specification.
	mode = 0o644
)

// Folder has the specifications of a driver.
type Folder struct {
	// Path of the folder that container runtimes read.
	Path string
	// Driver is the name of the driver.
	Driver string
}

// path of a claim's specification.
func (f Folder) path(claim types.UID) string {
	return filepath.Join(f.Path, f.Driver+"-"+string(claim)+".json")
}

// Write puts a specification into the folder, whole from the first moment on.
func (f Folder) Write(claim types.UID, spec cdi.Spec) error {
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("write a CDI specification: %w", err)
	}
	path := f.path(claim)
	unfinished := path + ".new" // container runtimes read .json and .yaml
	if err := os.WriteFile(unfinished, text, mode); err != nil {
		return fmt.Errorf("write a CDI specification: %w", err)
	}
	if err := os.Rename(unfinished, path); err != nil {
		return fmt.Errorf("write a CDI specification: %w", err)
	}
	return nil
}

// Remove takes a claim's specification away. It succeeds when there is none.
func (f Folder) Remove(claim types.UID) error {
	if err := os.Remove(f.path(claim)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a CDI specification: %w", err)
	}
	return nil
}

// PrepareEach has the devices of each claim prepared. One that can't be hurts only itself.
func PrepareEach(
	ctx context.Context, claims []*resourceapi.ResourceClaim,
	prepare func(context.Context, *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error),
) map[types.UID]kubeletplugin.PrepareResult {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := prepare(ctx, claim)
		if err != nil {
			err = fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
	}
	return results
}
