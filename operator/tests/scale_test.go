package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
)

const (
	// scaleEngines is how many engines serve; pools lie over all of them.
	scaleEngines = 4
	// buildRate is how many requests a second the operator may make while all is made. What is measured is measured at the chart's
	// rates.
	buildRate = 1000
	// chartRate and chartBurst are the rates of the chart.
	chartRate, chartBurst = 50, 100
	// chartMemory is the chart's limit of the operator's memory, and chartGarbage how much garbage it may have in hundredths of what lives.
	chartMemory, chartGarbage = "256MiB", "50"
	// settling is how long nothing is measured after the operator has started, and window how long then is.
	settling, window = 45 * time.Second, 90 * time.Second
	// scaleSamples is how many Containers are made one after the other.
	scaleSamples = 30
	// makers make objects at the same time.
	makers = 8
)

// row is one figure, as bench/src/report.rs writes it.
type row struct {
	Name      string   `json:"name"`
	Value     float64  `json:"value"`
	Unit      string   `json:"unit"`
	Reference *string  `json:"reference"`
	Ratio     *float64 `json:"ratio"`
	Goal      *string  `json:"goal"`
}

func figure(name string, value float64, unit, goal string) row {
	r := row{Name: name, Value: value, Unit: unit}
	if goal != "" {
		r.Goal = &goal
	}
	return r
}

// size reads how many of something there are to be.
func size(b *testing.B, variable string, otherwise int) int {
	b.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		b.Fatalf("%s is %q: give a number of 1 or more", variable, text)
	}
	return n
}

// BenchmarkOperatorAtScale measures the operator with many objects on a real API server: `make scale`. Its nodes are Node objects alone,
// whose status is written as kubelets do it: nothing that the operator looks at would come of simulated kubelets.
func BenchmarkOperatorAtScale(b *testing.B) {
	nodes, tenants, containers := size(b, "WEIR_SCALE_NODES", 500), size(b, "WEIR_SCALE_TENANTS", 200), size(b, "WEIR_SCALE_CONTAINERS", 10_000)
	for b.Loop() {
		i := furnish(b, scaleEngines)
		bindCluster(b, i.operatorNamespace)
		operator := i.startChild(buildRate, buildRate)
		begin := time.Now()
		makeAll(b, i, nodes, tenants, containers)
		progress(b, "all is ready after %s, with %.0f requests of the operator, %.0f MiB at most", time.Since(begin).Round(time.Second),
			operator.requests(), operator.memory("VmHWM"))
		operator.stop()
		scale := fmt.Sprintf("operator with %d Containers, %d nodes and %d tenants", containers, nodes, tenants)
		rows := measure(b, i, scale, nodes)
		report(b, rows)
	}
}

func progress(b *testing.B, format string, args ...any) {
	b.Helper()
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// measure starts an operator anew, as the chart does, and measures it.
func measure(b *testing.B, i *installation, scale string, nodes int) []row {
	b.Helper()
	operator := i.startChild(chartRate, chartBurst)
	defer operator.stop()
	stop := heartbeats(b, i, nodes)
	defer stop()
	time.Sleep(settling)
	rate := func(what string) float64 {
		before, begin := operator.requests(), time.Now()
		time.Sleep(window)
		perSecond := (operator.requests() - before) / time.Since(begin).Seconds()
		progress(b, "%s: %.2f requests a second, %.0f MiB", what, perSecond, operator.memory("VmRSS"))
		return perSecond
	}
	rest := rate("at rest")
	ended := use(b, i)
	busy := rate("while all volumes are written to")
	ended()
	made, reference := latencies(b, i)
	beside, ratio := fmt.Sprintf("a ConfigMap created and seen: %.1f ms", reference), made/reference
	ready := figure(scale+": Container created until Ready, p50", made, "ms", "≤ 2000")
	ready.Reference, ready.Ratio = &beside, &ratio
	return []row{
		figure(scale+": requests to the API server at rest", rest, "1/s", "≤ 20"),
		figure(scale+": requests to the API server while all containers fill", busy, "1/s", "≤ 20"),
		figure(scale+": memory, resident at most", operator.memory("VmHWM"), "MiB", "≤ 150"),
		ready,
	}
}

// bindCluster gives an operator the chart's roles in all namespaces.
func bindCluster(b *testing.B, namespace string) {
	b.Helper()
	for _, name := range []string{"weir-operator", "weir-operator-nodes"} {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: rolePrefix + name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "weir-operator", Namespace: namespace}},
		}
		if err := admin.Create(b.Context(), binding); err != nil {
			b.Fatal(err)
		}
	}
}

// each does something for each number below n, several at once.
func each(b *testing.B, n int, do func(int) error) {
	b.Helper()
	numbers, failures := make(chan int), make(chan error, makers)
	var group sync.WaitGroup
	for range makers {
		group.Go(func() {
			for number := range numbers {
				if err := do(number); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	var failed error
	for number := range n {
		select {
		case numbers <- number:
			continue
		case failed = <-failures:
		}
		break
	}
	close(numbers)
	group.Wait()
	select {
	case failed = <-failures:
	default:
	}
	if failed != nil {
		b.Fatal(failed)
	}
}

func poolName(n int) string { return fmt.Sprintf("tank-%03d", n) }

// makeAll makes nodes, a cluster, tenants each with a namespace and a pool, and containers spread over the pools, and waits until all
// is ready.
func makeAll(b *testing.B, i *installation, nodes, tenants, containers int) {
	b.Helper()
	each(b, nodes, func(n int) error { return makeNode(i, n) })
	i.apply(i.machines.cluster(scaleEngines, ""))
	domain := &v1alpha1.FabricDomain{ObjectMeta: metav1.ObjectMeta{Name: "hsn"}}
	domain.Spec.VNIRange, domain.Spec.EngineVNI = v1alpha1.VNIRange{First: 1000, Last: 9999}, 1000
	if err := admin.Create(b.Context(), domain); err != nil {
		b.Fatal(err)
	}
	allReady(b, i, &v1alpha1.StorageClusterList{}, 1)
	progress(b, "%d nodes, the cluster is ready", nodes)
	each(b, tenants, func(n int) error { return makeTenant(i, n) })
	allReady(b, i, &v1alpha1.PoolList{}, tenants)
	progress(b, "%d tenants with a pool each", tenants)
	each(b, containers, func(n int) error {
		return admin.Create(context.Background(), containerOf(i, fmt.Sprintf("box-%05d", n), poolName(n%tenants)))
	})
	progress(b, "%d Containers are created", containers)
	allReady(b, i, &v1alpha1.ContainerList{}, containers)
}

func containerOf(i *installation, name, pool string) *v1alpha1.Container {
	return &v1alpha1.Container{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.namespace, Name: name},
		Spec: v1alpha1.ContainerSpec{
			PoolRef: v1alpha1.LocalReference{Name: pool}, Quota: resource.NewQuantity(1<<29, resource.BinarySI), Type: v1alpha1.ContainerPosix,
			Attributes: map[string]v1alpha1.AttributeValue{"project": "alpha"},
		},
	}
}

// makeNode makes a node as large as those of real clusters are: their images are most of it.
func makeNode(i *installation, n int) error {
	ctx := context.Background()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i, n), Labels: map[string]string{"kubernetes.io/os": "linux"}}}
	if n < scaleEngines {
		node.Labels["test"] = i.namespace
	}
	if err := admin.Create(ctx, node); err != nil {
		return err
	}
	for image := range 50 {
		names := []string{fmt.Sprintf("registry.example/group/image-%d@sha256:%064d", image, image), fmt.Sprintf("registry.example/group/image-%d:v1.2.3", image)}
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: names, SizeBytes: 1 << 28})
	}
	node.Status.Conditions = beat(time.Now())
	if err := admin.Status().Update(ctx, node); err != nil {
		return err
	}
	// The API server taints new nodes until the node controller, which is not here, has seen them.
	node.Spec.Taints = nil
	return admin.Update(ctx, node)
}

func nodeName(i *installation, n int) string { return fmt.Sprintf("%s-node-%03d", i.namespace, n) }

// beat are the conditions of a node that is well.
func beat(now time.Time) []corev1.NodeCondition {
	kinds := []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady}
	conditions := make([]corev1.NodeCondition, 0, len(kinds))
	for _, kind := range kinds {
		state := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			state = corev1.ConditionTrue
		}
		conditions = append(conditions, corev1.NodeCondition{Type: kind, Status: state, LastHeartbeatTime: metav1.NewTime(now), Reason: "Kubelet"})
	}
	return conditions
}

// heartbeats writes the status of each node every five minutes, as kubelets do, until stop is called.
func heartbeats(b *testing.B, i *installation, nodes int) (stop func()) {
	b.Helper()
	return every(5*time.Minute/time.Duration(nodes), func(n int) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i, n%nodes)}}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": beat(time.Now())}})
		if err == nil {
			err = admin.Status().Patch(context.Background(), node, client.RawPatch("application/strategic-merge-patch+json", patch))
		}
		if err != nil {
			b.Error(err)
		}
	})
}

// every does something again and again until stop is called.
func every(pause time.Duration, do func(n int)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(pause)
		defer ticker.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				do(n)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// makeTenant makes a tenant, its namespace and its pool.
func makeTenant(i *installation, n int) error {
	ctx, name := context.Background(), fmt.Sprintf("tenant-%03d", n)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tenant": name}}}
	tenant := &v1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: name}}
	tenant.Spec.NamespaceSelector.MatchLabels = map[string]string{"tenant": name}
	tenant.Spec.VNI = v1alpha1.TenantVNI{Mode: v1alpha1.VNIPerTenant, Count: 1}
	pool := &v1alpha1.Pool{ObjectMeta: metav1.ObjectMeta{Namespace: i.namespace, Name: poolName(n)}}
	pool.Spec.ClusterRef.Name, pool.Spec.TenantRef = "weir", &v1alpha1.ClusterReference{Name: name}
	pool.Spec.Size = resource.MustParse("1Gi")
	for _, obj := range []client.Object{namespace, tenant, pool} {
		if err := admin.Create(ctx, obj); err != nil {
			return err
		}
	}
	return nil
}

// allReady waits until all objects of a list, and so many, are ready.
func allReady(b *testing.B, i *installation, list client.ObjectList, want int) {
	b.Helper()
	deadline := time.Now().Add(time.Hour)
	for {
		ready, last, err := countReady(i, list)
		if err != nil {
			b.Fatal(err)
		}
		if ready >= want {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("%d of %d are ready; the last that is not says %s", ready, want, last)
		}
		time.Sleep(time.Second + time.Duration(want)*500*time.Microsecond)
	}
}

func countReady(i *installation, list client.ObjectList) (ready int, last string, err error) {
	if err = admin.List(context.Background(), list, client.InNamespace(i.namespace)); err != nil {
		return 0, "", err
	}
	look := func(conditions []metav1.Condition) {
		if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); c != nil && c.Status == metav1.ConditionTrue {
			ready++
		} else if c != nil {
			last = c.Message
		}
	}
	switch list := list.(type) {
	case *v1alpha1.StorageClusterList:
		for n := range list.Items {
			look(list.Items[n].Status.Conditions)
		}
	case *v1alpha1.PoolList:
		for n := range list.Items {
			look(list.Items[n].Status.Conditions)
		}
	case *v1alpha1.ContainerList:
		for n := range list.Items {
			look(list.Items[n].Status.Conditions)
		}
	}
	return ready, last, nil
}

// use fills all containers, each by 256 KiB in ten seconds, until stop is called. That is news of every container and every pool.
func use(b *testing.B, i *installation) (stop func()) {
	b.Helper()
	var containers v1alpha1.ContainerList
	if err := admin.List(context.Background(), &containers, client.InNamespace(i.namespace)); err != nil {
		b.Fatal(err)
	}
	return every(10*time.Second, func(n int) {
		for _, c := range containers.Items {
			i.engines.SetUsed(c.Spec.PoolRef.Name, c.Name, uint64(n+1)*256<<10)
		}
	})
}

// latencies makes Containers one after the other, and ConfigMaps as a reference, and returns the medians of how long they take until they
// are ready, and until they are seen, in milliseconds.
func latencies(b *testing.B, i *installation) (container, reference float64) {
	b.Helper()
	watcher, err := client.NewWithWatch(adminConfig, client.Options{Scheme: admin.Scheme()})
	if err != nil {
		b.Fatal(err)
	}
	var made, seen []time.Duration
	for n := range scaleSamples {
		box := containerOf(i, fmt.Sprintf("sample-%02d", n), poolName(0))
		made = append(made, until(b, watcher, box, &v1alpha1.ContainerList{}, func(obj client.Object) bool {
			c, is := obj.(*v1alpha1.Container)
			return is && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady)
		}))
		plain := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: i.namespace, Name: box.Name}}
		seen = append(seen, until(b, watcher, plain, &corev1.ConfigMapList{}, func(client.Object) bool { return true }))
	}
	median := func(times []time.Duration) float64 {
		slices.Sort(times)
		return float64(times[len(times)/2].Microseconds()) / 1e3
	}
	progress(b, "Container until Ready: p50 %.1f ms, longest %s", median(made), made[len(made)-1])
	return median(made), median(seen)
}

// until creates an object and watches it until it is as it is to be.
func until(b *testing.B, c client.WithWatch, obj client.Object, list client.ObjectList, good func(client.Object) bool) time.Duration {
	b.Helper()
	watcher, err := c.Watch(b.Context(), list, client.InNamespace(obj.GetNamespace()), client.MatchingFields{"metadata.name": obj.GetName()})
	if err != nil {
		b.Fatal(err)
	}
	defer watcher.Stop()
	begin := time.Now()
	if err := c.Create(b.Context(), obj); err != nil {
		b.Fatal(err)
	}
	timeout := time.After(reaction)
	for {
		select {
		case e, open := <-watcher.ResultChan():
			if !open || e.Type == watch.Error {
				b.Fatalf("the watch of %s ended: %v", obj.GetName(), e.Object)
			}
			if seen, is := e.Object.(client.Object); is && good(seen) {
				return time.Since(begin)
			}
		case <-timeout:
			b.Fatalf("%s: not within %s", obj.GetName(), reaction)
		}
	}
}

// report prints the figures, and writes them among those of `make bench` where WEIR_SCALE_OUTPUT says; rows of the same name are replaced.
func report(b *testing.B, rows []row) {
	b.Helper()
	for _, r := range rows {
		goal := ""
		if r.Goal != nil {
			goal = ", goal " + *r.Goal
		}
		progress(b, "%s: %.4g %s%s", r.Name, r.Value, r.Unit, goal)
	}
	path := os.Getenv("WEIR_SCALE_OUTPUT")
	if path == "" {
		return
	}
	var all []row
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		if err := json.Unmarshal(text, &all); err != nil {
			b.Fatalf("%s holds no results: %v; delete it and run again", path, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		b.Fatal(err)
	}
	for _, r := range rows {
		all = slices.DeleteFunc(all, func(known row) bool { return known.Name == r.Name })
		all = append(all, r)
	}
	if text, err = json.MarshalIndent(all, "", "  "); err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o644) //nolint:gosec // results are for everybody
	}
	if err != nil {
		b.Fatal(err)
	}
}
