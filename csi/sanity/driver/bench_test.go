package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"weir.dev/weir/csi/sanity"
)

// BenchmarkVolumeFromRequestToFirstFile measures what the driver and what is below it add to the life of a claim: from
// CreateVolume over staging and publishing to the first file that is written.
func BenchmarkVolumeFromRequestToFirstFile(b *testing.B) {
	m := theMachine(b)
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		v := &volume{
			t: b, machine: m, name: fmt.Sprintf("pvc-bench-%d", len(times)),
			capability: mountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER),
		}
		made, err := v.controllers().CreateVolume(v.ctx(), &csi.CreateVolumeRequest{
			Name: v.name, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mebibyte},
			VolumeCapabilities: []*csi.VolumeCapability{v.capability}, Parameters: map[string]string{"pool": sanity.Pool},
		})
		if err != nil {
			b.Fatal(err)
		}
		v.id = made.GetVolume().GetVolumeId()
		target := v.mount("pod", false)
		if err := os.WriteFile(filepath.Join(target, "file"), []byte("x"), 0o600); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(begin))
		b.StopTimer()
		v.takeDown()
		if _, err := v.controllers().DeleteVolume(v.ctx(), &csi.DeleteVolumeRequest{VolumeId: v.id}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1e3, "p50-ms")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1e3, "p99-ms")
}
