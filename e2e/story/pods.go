package story

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// podManifest is a pod that mounts a claim at /data and runs a command. It runs on the node given by its order among
// the nodes, so that readers and writers are on different ones.
func podManifest(name, node, claim string, command ...string) string {
	quoted := make([]string, len(command))
	for i, word := range command {
		quoted[i] = fmt.Sprintf("%q", word)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: %s
  labels: {app: story}
spec:
  nodeName: %s
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: %s
      imagePullPolicy: IfNotPresent
      command: [%s]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes:
    - name: data
      persistentVolumeClaim: {claimName: %s}
`, name, AppNamespace, node, clientImage, strings.Join(quoted, ", "), claim)
}

// nodes lists the cluster's nodes by name.
func (s *Story) nodes(ctx context.Context) ([]string, error) {
	out, err := s.Cluster.Run(ctx, "get", "nodes", "-o", "jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}")
	return strings.Fields(out), err
}

// startPod starts a pod on the n-th node and waits until it runs.
func (s *Story) startPod(ctx context.Context, name string, n int, command ...string) error {
	nodes, err := s.nodes(ctx)
	if err != nil {
		return err
	}
	return s.startPodOn(ctx, name, nodes[n%len(nodes)], claimName, command...)
}

// startPodOn starts a pod on a node that mounts a claim and waits until it runs.
func (s *Story) startPodOn(ctx context.Context, name, node, claim string, command ...string) error {
	if err := s.Cluster.Apply(ctx, podManifest(name, node, claim, command...)); err != nil {
		return err
	}
	return s.Cluster.WaitFor(ctx, "condition=Ready", rolloutDeadline, "--namespace", AppNamespace, "pod/"+name)
}

func (s *Story) deletePod(ctx context.Context, name string) error {
	_, err := s.Cluster.Run(ctx, "--namespace", AppNamespace, "delete", "pod", name, "--ignore-not-found", "--timeout=2m")
	return err
}

// shell runs a script in a pod, with optional input.
func (s *Story) shell(ctx context.Context, pod string, stdin io.Reader, script string, args ...string) (string, error) {
	command := []string{"--namespace", AppNamespace, "exec", pod}
	if stdin != nil {
		command = append(command, "--stdin")
	}
	command = append(command, "--", "sh", "-c", script, "sh")
	return s.Cluster.Feed(ctx, stdin, append(command, args...)...)
}

func (s *Story) unpack(ctx context.Context) (string, error) {
	var err error
	if s.tree, err = loadTree(ctx, s.Without); err != nil {
		return "", err
	}
	if err := s.startPod(ctx, "unpacker", 1, "sleep", "infinity"); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, unpackDeadline)
	defer cancel()
	reader, pipe := io.Pipe()
	go func() { pipe.CloseWithError(s.tree.archive(pipe)) }()
	began := time.Now()
	script := "mkdir -p /data/src && tar -x --same-permissions -f - -C /data/src"
	if _, err := s.shell(ctx, "unpacker", reader, script); err != nil {
		return "", err
	}
	rate := float64(len(s.tree.entries)) / time.Since(began).Seconds()
	return fmt.Sprintf("%d entries, %d MB, %.0f entries/s", len(s.tree.entries), s.tree.bytes/1e6, rate),
		s.deletePod(ctx, "unpacker")
}

func (s *Story) verify(ctx context.Context) (string, error) {
	if err := s.startPod(ctx, "verifier", 2, "sleep", "infinity"); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, unpackDeadline)
	defer cancel()
	listing, err := s.shell(ctx, "verifier", nil, listScript, "/data/src")
	if err != nil {
		return "", err
	}
	compared, err := s.tree.compare(listing)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d entries have the same SHA-256, mode, mtime and link target", compared),
		s.deletePod(ctx, "verifier")
}
