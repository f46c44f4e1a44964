// Package kubectl runs kubectl and docker the way a person would, and reads what they print.
package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// pollInterval is how often a condition is looked at: often enough for timings of a tenth of a second's honesty, seldom
// enough for two cores.
const pollInterval = 300 * time.Millisecond

// Cluster is one Kubernetes cluster that kubectl reaches.
type Cluster struct {
	// Kubeconfig is the path of the configuration file.
	Kubeconfig string
}

// CommandError is a command that failed, with what it printed.
type CommandError struct {
	Command string
	Output  string
	Err     error
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.Command, e.Err, strings.TrimSpace(e.Output))
}

func (e *CommandError) Unwrap() error { return e.Err }

// Run runs kubectl and returns its standard output.
func (c *Cluster) Run(ctx context.Context, args ...string) (string, error) {
	return c.Feed(ctx, nil, args...)
}

// Warnings runs kubectl and returns what it prints on standard error, where the API server's warnings are.
func (c *Cluster) Warnings(ctx context.Context, args ...string) (string, error) {
	_, warnings, err := execute(ctx, nil, "kubectl", append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	return warnings, err
}

// Feed runs kubectl with standard input.
func (c *Cluster) Feed(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	stdout, _, err := execute(ctx, stdin, "kubectl", append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	return stdout, err
}

// Execute runs any other command and returns its standard output.
func Execute(ctx context.Context, name string, args ...string) (string, error) {
	stdout, _, err := execute(ctx, nil, name, args...)
	return stdout, err
}

// execute returns what the command printed on standard output and on standard error.
func execute(ctx context.Context, stdin io.Reader, name string, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	if stdin != nil {
		// By WebSockets a ping waits behind the input that a slow reader hasn't taken, and after a minute without an answer kubectl gives up.
		cmd.Env = append(os.Environ(), "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false")
	}
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return out.String(), errs.String(), &CommandError{
			Command: name + " " + strings.Join(args, " "), Output: errs.String(), Err: err,
		}
	}
	return out.String(), errs.String(), nil
}

// Apply applies a manifest.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	_, err := c.Feed(ctx, strings.NewReader(manifest), "apply", "-f", "-")
	return err
}

// Get decodes one object, or a list of them, into out.
func (c *Cluster) Get(ctx context.Context, out any, args ...string) error {
	text, err := c.Run(ctx, append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), out); err != nil {
		return fmt.Errorf("kubectl get %s printed no JSON: %w", strings.Join(args, " "), err)
	}
	return nil
}

// WaitFor runs `kubectl wait` with a deadline.
func (c *Cluster) WaitFor(ctx context.Context, condition string, deadline time.Duration, args ...string) error {
	_, err := c.Run(ctx, append([]string{"wait", "--for=" + condition, "--timeout=" + deadline.String()}, args...)...)
	return err
}

// Eventually looks at a condition until it holds, the deadline passes or the context ends. The condition returns what
// it saw, so that a timeout says how far things came.
func Eventually(ctx context.Context, deadline time.Duration, what string, condition func() (bool, string)) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	seen := ""
	for {
		holds, state := condition()
		if holds {
			return nil
		}
		seen = state
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s; last seen: %s", what, deadline, seen)
		case <-time.After(pollInterval):
		}
	}
}

// KillContainer sends SIGKILL to every process of a pod's container, from the node, as a crash would.
func (c *Cluster) KillContainer(ctx context.Context, namespace, pod string) error {
	var object struct {
		Spec   struct{ NodeName string }
		Status struct {
			ContainerStatuses []struct{ ContainerID string }
		}
	}
	if err := c.Get(ctx, &object, "--namespace", namespace, "pod", pod); err != nil {
		return err
	}
	if len(object.Status.ContainerStatuses) == 0 {
		return fmt.Errorf("pod %s/%s has no running container", namespace, pod)
	}
	_, id, found := strings.Cut(object.Status.ContainerStatuses[0].ContainerID, "://")
	if !found {
		return errors.New("container id without a scheme: " + object.Status.ContainerStatuses[0].ContainerID)
	}
	script := fmt.Sprintf("pids=$(grep -l %s /proc/[0-9]*/cgroup | cut -d/ -f3); test -n \"$pids\" && kill -9 $pids", id)
	_, err := Execute(ctx, "docker", "exec", object.Spec.NodeName, "sh", "-c", script)
	return err
}

// Stream runs a command and passes all it prints to out: for long work that reports its own progress.
func Stream(ctx context.Context, out io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return &CommandError{Command: name + " " + strings.Join(args, " "), Output: "see above", Err: err}
	}
	return nil
}
