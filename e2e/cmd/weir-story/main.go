// Command weir-story performs the main job on a real cluster, prints each step with its time, and leaves the cluster
// running.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"weir.dev/weir/e2e/kubectl"
	"weir.dev/weir/e2e/story"
)

func main() {
	repository := flag.String("repository", ".", "root of the source tree")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *repository); err != nil {
		fmt.Fprintln(os.Stderr, "make run:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, repository string) error {
	root, err := filepath.Abs(repository)
	if err != nil {
		return err
	}
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		kubeconfig = filepath.Join(root, "target", "kubeconfig")
	}
	s := &story.Story{Cluster: &kubectl.Cluster{Kubeconfig: kubeconfig}, Repository: root}
	began := time.Now()
	if _, err := story.Perform(ctx, os.Stdout, slices.Concat(s.Install(), s.Use(), s.Survive())); err != nil {
		return err
	}
	fmt.Printf(`
Done in %s. The cluster is still running. Look around:

  export KUBECONFIG=%s PATH=%s:$PATH
  kubectl --namespace %s get storageclusters,pools,containers,pods
  the dashboard: %s/consoles/weir.html

'make clean' removes everything.
`, time.Since(began).Round(time.Second), kubeconfig, filepath.Join(cacheDirectory(), "bin"), story.SystemNamespace,
		story.DashboardAddress)
	return nil
}

func cacheDirectory() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "."
	}
	return filepath.Join(cache, "weir")
}
