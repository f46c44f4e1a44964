package tests

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Specs that the API server takes; the cases below change one thing.
const (
	goodCluster = `{engines: {replicas: 3}, storage: {size: 8Gi, hostPath: {path: /var/lib/weir}}}`
	onDrives    = `{engines: {replicas: 1}, storage: {size: 8Gi, devices: {count: 2}}}`
	onClaims    = `{engines: {replicas: 1}, storage: {size: 8Gi, devices: {count: 2, deviceClass: nvme.weir.dev}}}`
	sxPool      = `{clusterRef: {name: weir}, size: 1Gi, objectClass: SX}`
	s1Pool      = `{clusterRef: {name: weir}, size: 1Gi, objectClass: S1}`
	goodPool    = `{clusterRef: {name: weir}, size: 1Gi}`
	goodBox     = `{poolRef: {name: tank}, quota: 1Gi}`
)

func object(kind, name, spec string) string {
	return fmt.Sprintf("apiVersion: storage.weir.dev/v1alpha1\nkind: %s\nmetadata: {name: %s}\nspec: %s\n", kind, name, spec)
}

func TestValidationOnCreation(t *testing.T) {
	tests := map[string]struct {
		manifest string
		// want is in the refusal; empty means that the object is accepted.
		want string
	}{
		"a cluster on directories is accepted":                  {object("StorageCluster", "good", goodCluster), ""},
		"a cluster on claims is accepted":                       {object("StorageCluster", "good", `{engines: {replicas: 3}, storage: {size: 8Gi, volumeClaimTemplate: {storageClassName: fast}}}`), ""},
		"a cluster name with a dot is no host name":             {object("StorageCluster", "a.b", goodCluster), "metadata.name becomes part of host names"},
		"a cluster name of 41 characters is too long":           {object("StorageCluster", strings.Repeat("a", 41), goodCluster), "at most 40 characters"},
		"a cluster without engines is refused":                  {object("StorageCluster", "x", `{engines: {replicas: 0}, storage: {size: 8Gi, hostPath: {path: /d}}}`), "greater than or equal to 1"},
		"an attribute of the CSI driver's can't be forged":      {object("Container", "x", `{poolRef: {name: tank}, attributes: {csi.weir.dev/name: pvc-1}}`), "are the CSI driver's"},
		"a cluster needs one kind of storage":                   {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 8Gi}}`), "exactly one of hostPath"},
		"a cluster can't have both kinds of storage":            {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 8Gi, hostPath: {path: /d}, volumeClaimTemplate: {}}}`), "exactly one of hostPath"},
		"a cluster on drives is accepted":                       {object("StorageCluster", "good", `{engines: {replicas: 1, targetsPerEngine: 3}, storage: {size: 8Gi, devices: {count: 3, selector: {matchLabels: {tier: fast}}}}}`), ""},
		"drives and a directory for data exclude each other":    {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 8Gi, devices: {count: 2}, hostPath: {path: /d}}}`), "exactly one of hostPath"},
		"each target has a drive of its own":                    {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 8Gi, devices: {count: 3}}}`), "count must equal engines.targetsPerEngine"},
		"a claim has no more than 32 drives":                    {object("StorageCluster", "x", `{engines: {replicas: 1, targetsPerEngine: 33}, storage: {size: 99Gi, devices: {count: 33, deviceClass: d}}}`), "at most 32 with deviceClass"},
		"drives are not erased by a deletion":                   {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 8Gi, devices: {count: 2}}, deletionPolicy: Delete}`), "drives are erased by hand"},
		"storage of size zero is refused":                       {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 0, hostPath: {path: /d}}}`), "storage.size must be greater than zero"},
		"a relative directory is refused":                       {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 8Gi, hostPath: {path: data}}}`), "must be an absolute path"},
		"a directory that climbs is refused":                    {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 8Gi, hostPath: {path: /var/../etc}}}`), "without '..'"},
		"an unknown provider is refused":                        {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 8Gi, hostPath: {path: /d}}, fabric: {provider: udp}}`), "supported values"},
		"shm reaches one node only":                             {object("StorageCluster", "x", `{engines: {replicas: 2}, storage: {size: 8Gi, hostPath: {path: /d}}, fabric: {provider: shm}}`), "shm reaches one node only"},
		"ports beyond the last are refused":                     {object("StorageCluster", "x", `{engines: {replicas: 1, targetsPerEngine: 8}, storage: {size: 8Gi, hostPath: {path: /d}}, ports: {fabric: 65530}}`), "above 65535"},
		"ports that overlap are refused":                        {object("StorageCluster", "x", `{engines: {replicas: 1, targetsPerEngine: 8}, storage: {size: 8Gi, hostPath: {path: /d}}, ports: {fabric: 9999}}`), "ports overlap"},
		"one port for two services is refused":                  {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 8Gi, hostPath: {path: /d}}, ports: {management: 20000, metrics: 20000}}`), "ports overlap"},
		"ports may lie side by side":                            {object("StorageCluster", "x", `{engines: {replicas: 1}, storage: {size: 8Gi, hostPath: {path: /d}}, ports: {fabric: 9999}}`), ""},
		"a pool is accepted":                                    {object("Pool", "good", goodPool), ""},
		"a pool of size zero is refused":                        {object("Pool", "x", `{clusterRef: {name: weir}, size: 0}`), "size must be greater than zero"},
		"a pool of negative size is refused":                    {object("Pool", "x", `{clusterRef: {name: weir}, size: -1Gi}`), "size must be greater than zero"},
		"a pool label with a space is refused":                  {object("Pool", "x", `{clusterRef: {name: weir}, size: 1Gi, label: "a b"}`), "label must start with a letter"},
		"a pool label that starts with a digit is out":          {object("Pool", "x", `{clusterRef: {name: weir}, size: 1Gi, label: 1a}`), "label must start with a letter"},
		"a pool name that starts with a digit is out":           {object("Pool", "1x", goodPool), "metadata.name is the pool's label"},
		"a pool name may start with a digit if it has a label":  {object("Pool", "1x", `{clusterRef: {name: weir}, size: 1Gi, label: x}`), ""},
		"a class in small letters is refused":                   {object("Pool", "x", `{clusterRef: {name: weir}, size: 1Gi, objectClass: sx}`), "objectClass is written in capitals"},
		"a rebuild delay without copies is refused":             {object("Pool", "x", `{clusterRef: {name: weir}, size: 1Gi, rebuildDelaySeconds: 60}`), "rebuildDelaySeconds needs a redundancyFactor above 0"},
		"a rebuild delay of a week is accepted":                 {object("Pool", "slow", `{clusterRef: {name: weir}, size: 1Gi, redundancyFactor: 1, rebuildDelaySeconds: 604800}`), ""},
		"a rank given twice is refused":                         {object("Pool", "x", `{clusterRef: {name: weir}, size: 1Gi, ranks: [1, 1]}`), "Duplicate value"},
		"a container is accepted":                               {object("Container", "good", goodBox), ""},
		"an unknown type of container is refused":               {object("Container", "x", `{poolRef: {name: tank}, type: block}`), "supported values"},
		"a quota of zero is refused":                            {object("Container", "x", `{poolRef: {name: tank}, quota: 0}`), "quota must be at least 1Mi"},
		"a quota of a few bytes is refused":                     {object("Container", "x", `{poolRef: {name: tank}, quota: 1048575}`), "quota must be at least 1Mi"},
		"a chunk of 3 KiB is refused":                           {object("Container", "x", `{poolRef: {name: tank}, chunkSize: 3Ki}`), "power of two from 4Ki to 1Gi"},
		"a chunk of 1 GiB, the largest, is accepted":            {object("Container", "x", `{poolRef: {name: tank}, chunkSize: 1Gi}`), ""},
		"a chunk of 1 MiB is accepted":                          {object("Container", "x", `{poolRef: {name: tank}, chunkSize: 1Mi}`), ""},
		"an owner of an object container is refused":            {object("Container", "x", `{poolRef: {name: tank}, type: object, owner: {uid: 1, gid: 1}}`), "owner is for type posix"},
		"a mode of 0, which stands for the default, is refused": {object("Container", "x", `{poolRef: {name: tank}, owner: {uid: 1, gid: 1, mode: "0000"}}`), "not all of them 0"},
		"a mode with an 8 is refused":                           {object("Container", "x", `{poolRef: {name: tank}, owner: {uid: 1, gid: 1, mode: "0785"}}`), "octal digits in quotes"},
	}
	namespace := makeUserNamespace(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			obj := parse(t, tc.manifest)[0]
			obj.SetNamespace(namespace)
			checkRefusal(t, admin.Create(t.Context(), obj, client.DryRunAll), tc.want)
		})
	}
}

func TestValidationOnChange(t *testing.T) {
	tests := map[string]struct {
		kind, spec, patch, want string
	}{
		"engines can be added":            {"StorageCluster", goodCluster, `{"engines": {"replicas": 4}}`, ""},
		"engines that never were can go":  {"StorageCluster", goodCluster, `{"engines": {"replicas": 2}}`, ""},
		"targets are immutable":           {"StorageCluster", goodCluster, `{"engines": {"targetsPerEngine": 4}}`, "targetsPerEngine is immutable"},
		"storage can't be resized":        {"StorageCluster", goodCluster, `{"storage": {"size": "16Gi"}}`, "storage.size is immutable"},
		"the same size in other units":    {"StorageCluster", goodCluster, `{"storage": {"size": "8192Mi"}}`, ""},
		"the directory is immutable":      {"StorageCluster", goodCluster, `{"storage": {"hostPath": {"path": "/other"}}}`, "storage.hostPath is immutable"},
		"storage can't change its kind":   {"StorageCluster", goodCluster, `{"storage": {"hostPath": null, "volumeClaimTemplate": {}}}`, "storage can't move"},
		"data can't move to drives":       {"StorageCluster", goodCluster, `{"storage": {"hostPath": null, "devices": {"count": 2}}}`, "storage can't move"},
		"records of drives can't move":    {"StorageCluster", onDrives, `{"storage": {"devices": {"path": "/other"}}}`, "storage.devices.path is immutable"},
		"a device class can come later":   {"StorageCluster", onDrives, `{"storage": {"devices": {"deviceClass": "nvme.weir.dev"}}}`, ""},
		"a device class stays":            {"StorageCluster", onClaims, `{"storage": {"devices": {"deviceClass": "other"}}}`, "can't change once it is set"},
		"drives can be selected later":    {"StorageCluster", onDrives, `{"storage": {"devices": {"selector": {"matchLabels": {"a": "b"}}}}}`, ""},
		"the provider is immutable":       {"StorageCluster", goodCluster, `{"fabric": {"provider": "verbs"}}`, "fabric is immutable"},
		"ports are immutable":             {"StorageCluster", goodCluster, `{"ports": {"fabric": 20000}}`, "ports are immutable"},
		"the image can change":            {"StorageCluster", goodCluster, `{"image": "weir/engine:next"}`, ""},
		"a pool can grow":                 {"Pool", goodPool, `{"size": "2Gi"}`, ""},
		"a pool can't shrink":             {"Pool", goodPool, `{"size": "1000Mi"}`, "size can only grow"},
		"a pool can't change its cluster": {"Pool", goodPool, `{"clusterRef": {"name": "other"}}`, "clusterRef is immutable"},
		"a pool can't get a label later":  {"Pool", goodPool, `{"label": "other"}`, "label is immutable"},
		"a pool can't get ranks later":    {"Pool", goodPool, `{"ranks": [0]}`, "ranks is immutable"},
		"a pool's class is immutable":     {"Pool", goodPool, `{"objectClass": "S1"}`, "objectClass is immutable"},
		"the class that it has is none":   {"Pool", goodPool, `{"objectClass": "SX"}`, ""},
		"nor is to leave out that one":    {"Pool", sxPool, `{"objectClass": null}`, ""},
		"another one can't be left out":   {"Pool", s1Pool, `{"objectClass": null}`, "objectClass is immutable"},
		"a pool's redundancy too":         {"Pool", goodPool, `{"redundancyFactor": 1}`, "redundancyFactor is immutable"},
		"a pool's policy can change":      {"Pool", goodPool, `{"deletionPolicy": "Delete"}`, ""},
		"a quota can shrink":              {"Container", goodBox, `{"quota": "512Mi"}`, ""},
		"a quota can be taken away":       {"Container", goodBox, `{"quota": null}`, ""},
		"a container's pool stays":        {"Container", goodBox, `{"poolRef": {"name": "other"}}`, "poolRef is immutable"},
		"a container's type stays":        {"Container", goodBox, `{"type": "object"}`, "type is immutable"},
		"a container's chunks stay":       {"Container", goodBox, `{"chunkSize": "64Ki"}`, "chunkSize is immutable"},
		"a container's class stays":       {"Container", goodBox, `{"objectClass": "S1"}`, "objectClass is immutable"},
		"a container's owner stays":       {"Container", goodBox, `{"owner": {"uid": 1, "gid": 1}}`, "owner is set when the container is made"},
		"a container's attributes stay":   {"Container", goodBox, `{"attributes": {"a": "b"}}`, "attributes are set when the container is made"},
	}
	namespace := makeUserNamespace(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			obj := parse(t, object(tc.kind, "x", tc.spec))[0]
			obj.SetNamespace(namespace)
			if err := admin.Create(t.Context(), obj); err != nil {
				t.Fatalf("create: %v", err)
			}
			defer func() { _ = admin.Delete(t.Context(), obj) }()
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec": `+tc.patch+`}`))
			checkRefusal(t, admin.Patch(t.Context(), obj.DeepCopy(), patch, client.DryRunAll), tc.want)
		})
	}
}

func TestOnlyEnginesThatWereNeverUpCanBeTakenAway(t *testing.T) {
	obj := parse(t, object("StorageCluster", "x", goodCluster))[0]
	obj.SetNamespace(makeUserNamespace(t))
	if err := admin.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	status := client.RawPatch("application/merge-patch+json", []byte(`{"status": {"readyEngines": 2, "engines": [
		{"rank": 0, "ready": true, "version": "1"}, {"rank": 1, "ready": false, "version": "1"}, {"rank": 2, "ready": false, "node": "c"}]}}`))
	if err := admin.Status().Patch(t.Context(), obj.DeepCopy(), status); err != nil {
		t.Fatal(err)
	}
	shrink := func(replicas int) error {
		patch := fmt.Sprintf(`{"spec": {"engines": {"replicas": %d}}}`, replicas)
		return admin.Patch(t.Context(), obj.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch)), client.DryRunAll)
	}
	checkRefusal(t, shrink(2), "")
	checkRefusal(t, shrink(1), "can't take away an engine that has been up")
}

func checkRefusal(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatalf("refused: %v", err)
	case want != "" && err == nil:
		t.Fatalf("accepted; want a refusal with %q", want)
	case want != "" && !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(want)):
		t.Fatalf("the refusal does not say %q: %v", want, err)
	}
}

func makeUserNamespace(t *testing.T) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "user-"}}
	if err := admin.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	return namespace.Name
}
