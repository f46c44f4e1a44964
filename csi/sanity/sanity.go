// Package sanity holds what the two runs of the CSI conformance suite (csi-sanity) share: how it is configured, and which
// cases may be skipped. The runs are in the folders services and driver, since a process can run the suite only once.
package sanity

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
)

// Pool is the label of the pool that the suite makes volumes in. It has at least 4 GiB.
const Pool = "tank"

//go:embed skips.txt
var skips string

// Run runs the suite against the driver that serves on two sockets. Paths of volumes are in folder, which
// is made if need be. It fails if a case
// is skipped that skips.txt does not explain, or if skips.txt explains one that was not skipped.
func Run(t *testing.T, nodeEndpoint, controllerEndpoint, folder string) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	config := sanity.NewTestConfig()
	config.Address = "unix://" + nodeEndpoint
	config.ControllerAddress = "unix://" + controllerEndpoint
	config.TargetPath = filepath.Join(folder, "target")
	config.StagingPath = filepath.Join(folder, "staging")
	config.TestVolumeSize = 1 << 30
	config.TestVolumeExpandSize = 2 << 30
	config.TestVolumeParameters = map[string]string{"pool": Pool}
	var problems []string
	ginkgo.ReportAfterSuite("skips are explained", func(report ginkgo.Report) {
		problems = unexplained(report, skips)
	})
	sanity.Test(t, config)
	for _, problem := range problems {
		t.Error(problem)
	}
}

// unexplained compares the cases that were skipped with the explanations: lines "<start of the case's name>: <reason>",
// the name as the suite reports it. Empty lines and lines that start with # are comments.
func unexplained(report ginkgo.Report, explanations string) []string {
	used := map[string]bool{}
	for line := range strings.SplitSeq(explanations, "\n") {
		if name, reason, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, "#") && strings.TrimSpace(reason) != "" {
			used[name] = false
		}
	}
	var (
		problems []string
		ran      int
	)
	for _, spec := range report.SpecReports {
		if spec.LeafNodeType != types.NodeTypeIt {
			continue
		}
		if spec.State != types.SpecStateSkipped && spec.State != types.SpecStatePending {
			ran++
			continue
		}
		explained := false
		for name := range used {
			if strings.HasPrefix(spec.FullText(), name) {
				used[name], explained = true, true
			}
		}
		if !explained {
			problems = append(problems, fmt.Sprintf("skipped without explanation in skips.txt: %s (%s)", spec.FullText(), spec.Failure.Message))
		}
	}
	for name, wasSkipped := range used {
		if !wasSkipped {
			problems = append(problems, "skips.txt explains cases that were not skipped: "+name)
		}
	}
	if ran == 0 {
		problems = append(problems, "no case ran")
	}
	return problems
}
