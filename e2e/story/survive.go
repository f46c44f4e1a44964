package story

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/e2e/kubectl"
)

// keptClaim is the claim of the load.
const keptClaim = "kept"

var keptManifest = fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: %s}
spec:
  storageClassName: weir
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 512Mi}}
`, keptClaim, AppNamespace)

// lost is the node that is taken away.
type lost struct {
	node, engine, rank string
	// others are the nodes that stay.
	others []string
}

// Survive is the part of the story in which a storage node is lost.
func (s *Story) Survive() []Step {
	return []Step{
		{"claim a volume of the pool that survives the loss of a node", s.makeKept},
		{"take a storage node away for good while one pod writes and another reads", s.loseNode},
		{"bring the node back, empty", s.returnNode},
		{"restart all engines by a change of their image, under the same load", s.restartEngines},
		{"end the load and verify every file", s.endLoad},
		{"delete the claim", s.dropKept},
	}
}

func (s *Story) makeKept(ctx context.Context) (string, error) {
	if err := s.Cluster.Apply(ctx, keptManifest); err != nil {
		return "", err
	}
	err := s.Cluster.WaitFor(ctx, "jsonpath={.status.phase}=Bound", rolloutDeadline, "--namespace", AppNamespace, "persistentvolumeclaim/"+keptClaim)
	if err != nil {
		return "", errors.Join(err, s.describe(ctx, AppNamespace, "persistentvolumeclaim/"+keptClaim))
	}
	_, seen, err := s.pool(ctx)
	return seen, err
}

// poolState is what the Pool says.
type poolState struct {
	Health  string
	MayFail *int
	Rebuild *struct {
		Percent  *int
		TimeLeft string
	}
	Conditions []struct{ Type, Status, Reason, Message string }
}

// pool reads the Pool, and says what `kubectl get pools` shows of it.
func (s *Story) pool(ctx context.Context) (poolState, string, error) {
	var object struct{ Status poolState }
	if err := s.Cluster.Get(ctx, &object, "--namespace", SystemNamespace, "pool", poolName); err != nil {
		return poolState{}, "", err
	}
	state := object.Status
	seen := state.Health
	if state.MayFail != nil {
		seen += fmt.Sprintf(", %d may fail", *state.MayFail)
	}
	if rebuild := state.Rebuild; rebuild != nil && rebuild.Percent != nil {
		seen += fmt.Sprintf(", %d %%", *rebuild.Percent)
		if rebuild.TimeLeft != "" {
			seen += ", " + rebuild.TimeLeft + " left"
		}
	}
	return state, seen, nil
}

// condition is the status of a condition of the Pool.
func (p *poolState) condition(kind string) string {
	for _, c := range p.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return "absent"
}

// awaitPool waits until the Pool is as wanted, and returns all that it showed meanwhile.
func (s *Story) awaitPool(ctx context.Context, what string, wanted func(poolState) bool) ([]string, error) {
	var shown []string
	err := kubectl.Eventually(ctx, rolloutDeadline, what, func() (bool, string) {
		state, seen, err := s.pool(ctx)
		if err == nil && !slices.Contains(shown, seen) {
			shown = append(shown, seen)
		}
		return err == nil && wanted(state), fmt.Sprintf("%s, %v", seen, err)
	})
	if err != nil {
		err = errors.Join(err, s.describe(ctx, SystemNamespace, "pool/"+poolName))
	}
	return shown, err
}

// chooseNode picks a worker that does not run the operator, and the name server only if there is no other: this is about storage.
func (s *Story) chooseNode(ctx context.Context) (lost, error) {
	var pods struct {
		Items []struct {
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Spec struct{ NodeName string }
		}
	}
	if err := s.Cluster.Get(ctx, &pods, "--all-namespaces", "pods"); err != nil {
		return lost{}, err
	}
	nodes, err := s.nodes(ctx)
	if err != nil {
		return lost{}, err
	}
	// The first node has the API server.
	hosts := func(component, value string) func(string) bool {
		return func(node string) bool {
			for _, pod := range pods.Items {
				if pod.Spec.NodeName == node && pod.Metadata.Labels[component] == value {
					return true
				}
			}
			return false
		}
	}
	workers := slices.DeleteFunc(slices.Clone(nodes[1:]), hosts("app.kubernetes.io/component", "operator"))
	if others := slices.DeleteFunc(slices.Clone(workers), hosts("k8s-app", "kube-dns")); len(others) > 0 {
		workers = others
	}
	if len(workers) == 0 {
		return lost{}, fmt.Errorf("of the nodes %v none is without API server and operator", nodes)
	}
	l := lost{node: workers[len(workers)-1]}
	l.others = slices.DeleteFunc(nodes, func(node string) bool { return node == l.node })
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == l.node && pod.Metadata.Labels["app.kubernetes.io/component"] == "engine" {
			l.engine, l.rank = pod.Metadata.Name, pod.Metadata.Labels["storage.weir.dev/rank"]
		}
	}
	if l.engine == "" {
		return l, fmt.Errorf("node %s has no engine", l.node)
	}
	return l, nil
}

func (s *Story) loseNode(ctx context.Context) (string, error) {
	var err error
	if s.lost, err = s.chooseNode(ctx); err != nil {
		return "", err
	}
	if err := s.startLoad(ctx, s.lost.others[0], s.lost.others[1]); err != nil {
		return "", err
	}
	began := time.Now()
	if _, err := kubectl.Execute(ctx, "docker", "kill", s.lost.node); err != nil {
		return "", err
	}
	// As if the machine had come new: the directory in which the engine kept its data.
	_, err = kubectl.Execute(ctx, "docker", "run", "--rm", "--network=none", "--volumes-from", s.lost.node, "--entrypoint=rm", clientImage,
		"-rf", "/var/lib/weir-data")
	if err != nil {
		return "", err
	}
	shown, err := s.awaitPool(ctx, "the Pool is Degraded and AtRisk", func(p poolState) bool {
		return p.condition("Degraded") == "True" && p.condition("AtRisk") == "True"
	})
	if err != nil {
		return "", err
	}
	noticed := time.Since(began)
	if err := s.goesOn(ctx, loadPods...); err != nil {
		return "", err
	}
	stalls, err := s.stalls(ctx)
	return fmt.Sprintf("%s with rank %s is gone; after %.0f s the Pool showed: %s. %s", s.lost.node, s.lost.rank, noticed.Seconds(),
		strings.Join(shown, " → "), stalls), err
}

func (s *Story) returnNode(ctx context.Context) (string, error) {
	began := time.Now()
	if _, err := kubectl.Execute(ctx, "docker", "start", s.lost.node); err != nil {
		return "", err
	}
	rebuilding := false
	shown, err := s.awaitPool(ctx, "the Pool rebuilds and is healthy", func(p poolState) bool {
		rebuilding = rebuilding || p.condition("Rebuilding") == "True"
		return rebuilding && p.Health == "Healthy" && p.condition("Degraded") == "False" && p.condition("AtRisk") == "False"
	})
	if err != nil {
		return "", err
	}
	healthy := time.Since(began)
	if err := s.goesOn(ctx, loadPods...); err != nil {
		return "", err
	}
	stalls, err := s.stalls(ctx)
	return fmt.Sprintf("after %.0f s: %s. %s", healthy.Seconds(), strings.Join(shown, " → "), stalls), err
}

// restartEngines names the same image by its whole name, which is another one for Kubernetes.
func (s *Story) restartEngines(ctx context.Context) (string, error) {
	cluster := "storagecluster/" + clusterName
	if err := s.Cluster.WaitFor(ctx, "condition=Ready", rolloutDeadline, "--namespace", SystemNamespace, cluster); err != nil {
		return "", errors.Join(err, s.describe(ctx, SystemNamespace, cluster))
	}
	began := time.Now()
	_, err := s.Cluster.Run(ctx, "--namespace", SystemNamespace, "patch", cluster, "--type=merge", "--patch", `{"spec": {"image": "docker.io/weir/engine:dev"}}`)
	if err != nil {
		return "", err
	}
	restarted := `jsonpath={range .items[*]}{.spec.containers[0].image} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`
	err = kubectl.Eventually(ctx, 2*rolloutDeadline, "all engines are restarted", func() (bool, string) {
		out, err := s.Cluster.Run(ctx, "--namespace", SystemNamespace, "get", "pods", "--selector", "app.kubernetes.io/component=engine", "-o", restarted)
		return err == nil && out == strings.Repeat("docker.io/weir/engine:dev True\n", 3), fmt.Sprintf("%s, %v", out, err)
	})
	if err != nil {
		return "", errors.Join(err, s.describe(ctx, SystemNamespace, cluster))
	}
	if _, err := s.awaitPool(ctx, "the Pool is healthy", func(p poolState) bool { return p.condition("AtRisk") == "False" }); err != nil {
		return "", err
	}
	took := time.Since(began)
	if err := s.goesOn(ctx, loadPods...); err != nil {
		return "", err
	}
	stalls, err := s.stalls(ctx)
	return fmt.Sprintf("3 engines in %.0f s. %s", took.Seconds(), stalls), err
}

func (s *Story) dropKept(ctx context.Context) (string, error) {
	_, err := s.Cluster.Run(ctx, "--namespace", AppNamespace, "delete", "persistentvolumeclaim", keptClaim, "--timeout=3m")
	return "the claim is gone", err
}
