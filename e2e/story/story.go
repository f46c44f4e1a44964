// Package story performs the main job from end to end on a real cluster: a pool and a container applied to Kubernetes,
// mounted in pods on different nodes, holding a real source tree, through a crash, and back to free space; then through the loss of
// a node.
package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"weir.dev/weir/e2e/kubectl"
)

// Names that the quickstart manifest and the chart agree on.
const (
	// SystemNamespace holds the operator, the CSI driver and the storage cluster.
	SystemNamespace = "weir-system"
	// AppNamespace holds the claim and the pods of the story.
	AppNamespace = "default"
	release      = "weir"
	clusterName  = "weir"
	poolName     = "tank"
	claimName    = "data"
	// clientImage has a shell, tar, find, sha256sum and dd: all that the story's pods run.
	clientImage = "weir/client:dev"
)

// Deadlines are generous: two busy cores, and other work beside.
const (
	rolloutDeadline = 5 * time.Minute
	unpackDeadline  = 20 * time.Minute
	reclaimDeadline = 5 * time.Minute
)

// Step is one thing the story does.
type Step struct {
	// Name says what is done, for the progress line.
	Name string
	// Run does it and returns what was seen, for the end of the line.
	Run func(context.Context) (string, error)
}

// Story is one performance of the main job.
type Story struct {
	// Cluster is where it is performed.
	Cluster *kubectl.Cluster
	// Repository is the root of the source tree.
	Repository string
	// Without is a folder of the Go sources that is left out; empty: none is.
	Without string

	tree   *tree
	writer writer
	lost   lost
}

// Result is how a step went.
type Result struct {
	Name    string
	Seen    string
	Elapsed time.Duration
}

// Perform runs the steps in order and prints each with its time. It stops at the first failure.
func Perform(ctx context.Context, out io.Writer, steps []Step) ([]Result, error) {
	results := make([]Result, 0, len(steps))
	for i, step := range steps {
		_, _ = fmt.Fprintf(out, "[%2d/%d] %s ...\n", i+1, len(steps), step.Name)
		began := time.Now()
		seen, err := step.Run(ctx)
		elapsed := time.Since(began)
		if err != nil {
			return results, fmt.Errorf("%s: failed after %s: %w", step.Name, elapsed.Round(time.Second), err)
		}
		_, _ = fmt.Fprintf(out, "        %6.1f s  %s\n", elapsed.Seconds(), seen)
		results = append(results, Result{Name: step.Name, Seen: seen, Elapsed: elapsed})
	}
	return results, nil
}

// Install is the part of the story that brings the system up.
func (s *Story) Install() []Step {
	return []Step{
		{"make a three-node Kubernetes cluster", s.makeCluster},
		{"build the images and load them into the nodes", s.loadImages},
		{"helm install weir", s.install},
		{"kubectl apply: StorageCluster, Pool, Container, StorageClass, PersistentVolumeClaim", s.apply},
		{"wait for three engines, the pool and the claim", s.ready},
	}
}

// Use is the part of the story that uses it.
func (s *Story) Use() []Step {
	return []Step{
		{"unpack the Go sources into the volume, from a pod on one node", s.unpack},
		{"verify every file from a pod on another node", s.verify},
		{"kill an engine with SIGKILL while a third pod writes", s.crash},
		{"check that every acknowledged write is there", s.checkAcknowledged},
		{"see it all in Prometheus", s.observe},
		{"delete the claim and get the space back", s.reclaim},
	}
}

func (s *Story) makeCluster(ctx context.Context) (string, error) {
	if err := s.script(ctx, "e2e/cluster/cluster.sh", "up"); err != nil {
		return "", err
	}
	nodes, err := s.Cluster.Run(ctx, "get", "nodes", "-o", "name")
	return fmt.Sprintf("%d nodes Ready", countLines(nodes)), err
}

func (s *Story) loadImages(ctx context.Context) (string, error) {
	if err := s.script(ctx, "images/build.sh"); err != nil {
		return "", err
	}
	if err := s.script(ctx, "e2e/prometheus/build.sh"); err != nil {
		return "", err
	}
	images := []string{"weir/engine:dev", "weir/operator:dev", "weir/csi:dev", clientImage, "weir/prometheus:dev"}
	return fmt.Sprintf("%d images", len(images)), s.script(ctx, "e2e/cluster/cluster.sh", append([]string{"load"}, images...)...)
}

// script runs one of the repository's scripts with its progress on our standard error.
func (s *Story) script(ctx context.Context, name string, args ...string) error {
	return kubectl.Stream(ctx, os.Stderr, filepath.Join(s.Repository, name), args...)
}

func (s *Story) install(ctx context.Context) (string, error) {
	if err := s.applyFile(ctx, "charts/weir/samples/namespace.yaml"); err != nil {
		return "", err
	}
	_, err := kubectl.Execute(ctx, "helm", "upgrade", "--install", release, filepath.Join(s.Repository, "charts/weir"),
		"--kubeconfig", s.Cluster.Kubeconfig, "--namespace", SystemNamespace,
		"--values", filepath.Join(s.Repository, "e2e/values.yaml"), "--wait", "--timeout", rolloutDeadline.String())
	if err != nil {
		return "", err
	}
	return "operator and CSI driver are running", nil
}

func (s *Story) apply(ctx context.Context) (string, error) {
	return "quickstart.yaml", errors.Join(
		s.applyFile(ctx, "charts/weir/samples/quickstart.yaml"),
		s.applyFile(ctx, "e2e/prometheus/prometheus.yaml"),
	)
}

func (s *Story) applyFile(ctx context.Context, name string) error {
	_, err := s.Cluster.Run(ctx, "apply", "-f", filepath.Join(s.Repository, name))
	return err
}

func (s *Story) ready(ctx context.Context) (string, error) {
	waits := []struct{ namespace, condition, object string }{
		{SystemNamespace, "condition=Ready", "storagecluster/" + clusterName},
		{SystemNamespace, "condition=Ready", "pool/" + poolName},
		{SystemNamespace, "condition=Ready", "container/scratch"},
		{SystemNamespace, "condition=Available", "deployment/prometheus"},
		{AppNamespace, "jsonpath={.status.phase}=Bound", "persistentvolumeclaim/" + claimName},
	}
	for _, wait := range waits {
		if err := s.Cluster.WaitFor(ctx, wait.condition, rolloutDeadline, "--namespace", wait.namespace, wait.object); err != nil {
			return "", errors.Join(err, s.describe(ctx, wait.namespace, wait.object))
		}
	}
	engines, err := s.engines(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d engines Ready, pool %s Ready, claim %s Bound", len(engines), poolName, claimName), nil
}

// describe is what a person would look at next; it makes the error of a failed wait useful.
func (s *Story) describe(ctx context.Context, namespace, object string) error {
	text, err := s.Cluster.Run(ctx, "--namespace", namespace, "describe", object)
	if err != nil {
		return err
	}
	return errors.New("its description:\n" + text)
}

// engines lists the names of the engine pods.
func (s *Story) engines(ctx context.Context) ([]string, error) {
	var pods struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	err := s.Cluster.Get(ctx, &pods, "--namespace", SystemNamespace, "pods", "--selector", "app.kubernetes.io/component=engine")
	names := make([]string, 0, len(pods.Items))
	for _, pod := range pods.Items {
		names = append(names, pod.Metadata.Name)
	}
	return names, err
}

func countLines(text string) int {
	lines := 0
	for _, b := range text {
		if b == '\n' {
			lines++
		}
	}
	return lines
}
