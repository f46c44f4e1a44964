// Command kubernetes is every Kubernetes component that a cluster node runs, and etcd, in one binary: which one it is
// follows from the name it is started by. One binary is a quarter of the size of eight, because they share most of their
// code.
//
// The module takes Kubernetes from the Go module proxy at one tag, for machines without a container registry.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubecontrollermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubescheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// components maps the name that a component is started by to its main function, which returns the exit status.
var components = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          daemon(kubeapiserver.NewAPIServerCommand),
	"kube-controller-manager": daemon(kubecontrollermanager.NewControllerManagerCommand),
	"kube-proxy":              daemon(kubeproxy.NewProxyCommand),
	"kube-scheduler":          daemon(func() *cobra.Command { return kubescheduler.NewSchedulerCommand() }),
	"kubelet":                 daemon(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubeadm":                 runKubeadm,
	"kubectl":                 runKubectl,
}

func main() {
	name := filepath.Base(os.Args[0])
	run, known := components[name]
	if !known {
		names := make([]string, 0, len(components))
		for component := range components {
			names = append(names, component)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "%s is no Kubernetes component: start this file under one of the names %s\n",
			name, strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(run())
}

// daemon gives the main function of a component that is one command. The command is made when it is started, because
// making it registers flags and feature gates.
func daemon(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

// runEtcd returns when the server has ended in good order; etcd itself exits with the status of a failure.
func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

func runKubeadm() int {
	if err := kubeadm.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
		return 1
	}
	return 0
}
