package policy

import (
	"fmt"
	"strings"

	"weir.dev/weir/operator/api/v1alpha1"
)

// MinTargetBytes is the least storage of a target that an engine formats: log, checkpoints and a few pools.
const MinTargetBytes = 64 << 20

// ClusterEngine is what is known of one engine.
type ClusterEngine struct {
	Rank int32
	// Ready is true while the pod is ready and the engine answers.
	Ready bool
	// Started is true once the engine has been up.
	Started bool
	// Outdated is true while the engine runs with an older configuration than the spec asks for.
	Outdated bool
	// GivenUp is true when the spec calls what the engine has lost.
	GivenUp bool
	// Message says why the engine is not ready.
	Message string
}

// Cluster is what is known of a StorageCluster.
type Cluster struct {
	Name string
	// TargetBytes is the storage of one target.
	TargetBytes int64
	// ClientSecretOwner is who else owns the client Secret's name, such as "StorageCluster namespace/name".
	ClientSecretOwner string
	// ClientSecret is the name of that Secret, "namespace/name".
	ClientSecret string
	// Shortage says why some rank has no node; empty when all have one.
	Shortage string
	// DriveShortage says which ranks have too few drives; empty when all have enough.
	DriveShortage string
	// DriveFailures says which drives have failed and were not replaced; empty when none.
	DriveFailures string
	Engines       []ClusterEngine
	// RolloutHeld says what the restart of the next engine waits for beside the others being up; empty for nothing.
	RolloutHeld string
}

// ClusterReady finds what keeps a cluster from serving.
var ClusterReady = Chain[Cluster]{
	clusterStorageFits,     // a target has room for its log
	clusterNodesSuffice,    // every rank has a node
	clusterDrivesSuffice,   // every target has a drive
	clusterEnginesUp,       // every engine answers
	clusterClientSecretOwn, // CSI and mount daemon reach this cluster, not its namesake
}

// ClusterSettled finds what is still being changed.
var ClusterSettled = Chain[Cluster]{
	clusterStarted, // every engine has been up once
	clusterCurrent, // every engine runs what the spec asks for
}

// ClusterHealthy finds engines that have served and don't, and drives that have failed.
var ClusterHealthy = Chain[Cluster]{
	clusterNoneLost,      // no data is unavailable
	clusterNoDriveFailed, // no drive has failed
}

func clusterStorageFits(c Cluster) (string, string, bool) {
	if c.TargetBytes >= MinTargetBytes {
		return "", "", false
	}
	return v1alpha1.ReasonStorageTooSmall, fmt.Sprintf(
		"StorageCluster %s: spec.storage.size gives each target %s, it needs %s: make a StorageCluster with more storage or fewer targetsPerEngine",
		c.Name, Bytes(c.TargetBytes), Bytes(MinTargetBytes)), true
}

func clusterNodesSuffice(c Cluster) (string, string, bool) {
	return v1alpha1.ReasonTooFewNodes, c.Shortage, c.Shortage != ""
}

func clusterDrivesSuffice(c Cluster) (string, string, bool) {
	return v1alpha1.ReasonTooFewDrives, c.DriveShortage, c.DriveShortage != ""
}

func clusterNoDriveFailed(c Cluster) (string, string, bool) {
	return v1alpha1.ReasonDriveFailed, c.DriveFailures, c.DriveFailures != ""
}

func clusterClientSecretOwn(c Cluster) (string, string, bool) {
	if c.ClientSecretOwner == "" {
		return "", "", false
	}
	return v1alpha1.ReasonClientSecretTaken, fmt.Sprintf(
		"StorageCluster %s: Secret %s belongs to %s, so that volumes of this cluster can't be mounted: make one of the two under another name, or delete the Secret if that one is gone",
		c.Name, c.ClientSecret, c.ClientSecretOwner), true
}

func clusterEnginesUp(c Cluster) (string, string, bool) {
	var down []string
	for _, e := range c.Engines {
		if !e.Ready {
			down = append(down, fmt.Sprintf("rank %d: %s", e.Rank, e.Message))
		}
	}
	if len(down) == 0 {
		return "", "", false
	}
	return v1alpha1.ReasonEnginesNotReady, fmt.Sprintf("%d of %s ready; %s",
		len(c.Engines)-len(down), Plural(len(c.Engines), "engine"), strings.Join(down, "; ")), true
}

func clusterStarted(c Cluster) (string, string, bool) {
	var waiting []int32
	for _, e := range c.Engines {
		if !e.Started {
			waiting = append(waiting, e.Rank)
		}
	}
	return v1alpha1.ReasonStarting, fmt.Sprintf("starting engines of rank %s", rankList(waiting)), len(waiting) > 0
}

func clusterCurrent(c Cluster) (string, string, bool) {
	var outdated []int32
	for _, e := range c.Engines {
		if e.Outdated {
			outdated = append(outdated, e.Rank)
		}
	}
	message := fmt.Sprintf("restarting engines one at a time, still to come: rank %s", rankList(outdated))
	if c.RolloutHeld != "" {
		message += "; the next one waits: " + c.RolloutHeld
	}
	return v1alpha1.ReasonRollingOut, message, len(outdated) > 0
}

func clusterNoneLost(c Cluster) (string, string, bool) {
	var lost []int32
	for _, e := range c.Engines {
		if e.Started && !e.Ready && !e.GivenUp {
			lost = append(lost, e.Rank)
		}
	}
	return v1alpha1.ReasonEnginesNotReady, fmt.Sprintf(
		"data on rank %s is unavailable until the engine is back; nothing is lost", rankList(lost)), len(lost) > 0
}
