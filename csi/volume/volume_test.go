package volume

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const (
	poolUUID      = "0f2c1d7e-5d34-4a3c-9f11-0c7a3d2b1e01"
	containerUUID = "b2c1d7e0-5d34-4a3c-9f11-0c7a3d2b1e02"
)

func TestParseID(t *testing.T) {
	tests := map[string]struct {
		text string
		want ID
		bad  bool
	}{
		"an id with UUIDs is what CreateVolume returns": {
			text: "weir/" + poolUUID + "/" + containerUUID,
			want: ID{System: "weir", Pool: poolUUID, Container: containerUUID},
		},
		"an id with labels names a static volume": {
			text: "weir/tank/home.v1", want: ID{System: "weir", Pool: "tank", Container: "home.v1"},
		},
		"labels may begin and end as engines allow": {
			text: "weir/_a.b:/2-", want: ID{System: "weir", Pool: "_a.b:", Container: "2-"},
		},
		"an empty id is refused":                       {text: "", bad: true},
		"an id of two parts is refused":                {text: "weir/tank", bad: true},
		"an id of four parts is refused":               {text: "weir/tank/a/b", bad: true},
		"an id with an empty part is refused":          {text: "weir//a", bad: true},
		"an id that climbs out of a folder is refused": {text: "weir/../a", bad: true},
		"an id that stays in a folder is refused":      {text: "weir/tank/.", bad: true},
		"an id of an odd system is refused":            {text: "-weir/tank/a", bad: true},
		"an id with a control character is refused":    {text: "weir/tank/a\nb", bad: true},
		"an id longer than CSI allows is refused":      {text: "weir/tank/" + strings.Repeat("a", 128), bad: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseID(tc.text)
			if (err != nil) != tc.bad || got != tc.want {
				t.Fatalf("got %+v, %v; want %+v, an error: %t", got, err, tc.want, tc.bad)
			}
			if err == nil && got.String() != tc.text {
				t.Errorf("written again it is %q", got.String())
			}
		})
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("weir/tank/home")
	f.Add("weir/" + poolUUID + "/" + containerUUID)
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseID(text)
		if err != nil {
			if len(err.Error()) > 1024 {
				t.Errorf("an error of %d bytes for hostile input", len(err.Error()))
			}
			return
		}
		if again, err := ParseID(id.String()); err != nil || again != id {
			t.Errorf("%q reads as %+v, which reads as %+v, %v", text, id, again, err)
		}
	})
}

func TestLabel(t *testing.T) {
	tests := map[string]struct {
		name string
		want string
	}{
		"the name that Kubernetes gives is kept":        {name: "pvc-" + poolUUID, want: "pvc-" + poolUUID},
		"a name with spaces gets a readable prefix":     {name: "my volume!", want: "v-my-volume-"},
		"a name that starts with a digit gets a letter": {name: "42", want: "v-42-"},
		"a name that reads as a UUID is no label":       {name: containerUUID, want: "v-b2c1d7e0-"},
		"a name of unusual letters is hashed":           {name: "größe", want: "v-gr-e-"},
		"a name longer than a label is cut":             {name: strings.Repeat("a", 128), want: "v-aaaa"},
	}
	seen := map[string]string{}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := Label(tc.name)
			if !strings.HasPrefix(got, tc.want) || len(got) > maxLabelBytes || !labelPattern.MatchString(got) || uuidPattern.MatchString(got) {
				t.Errorf("got %q (%d bytes), want it to start with %q and to be a label", got, len(got), tc.want)
			}
			if other, taken := seen[got]; taken {
				t.Errorf("%q and %q have the same label %q", tc.name, other, got)
			}
			seen[got] = tc.name
			if Label(tc.name) != got {
				t.Error("the same name gave another label")
			}
		})
	}
}

func TestParseParameters(t *testing.T) {
	tests := map[string]struct {
		parameters map[string]string
		want       Parameters
		wantErr    []string
	}{
		"all parameters are read": {
			parameters: map[string]string{
				"pool": "tank", "cluster": "weir", "objectClass": "S2", "chunkSize": "4Mi", "uid": "1000", "gid": "2000", "mode": "0770",
				"intercept": "true",
			},
			want: Parameters{Pool: "tank", Cluster: "weir", ObjectClass: "S2", ChunkSizeBytes: 4 << 20, UID: 1000, GID: 2000, Mode: 0o770, Intercept: true},
		},
		"the claim becomes attributes": {
			parameters: map[string]string{"pool": "tank", "csi.storage.k8s.io/pvc/name": "home", "csi.storage.k8s.io/pvc/namespace": "lab"},
			want:       Parameters{Pool: "tank", Attributes: map[string]string{AttributeClaimName: "home", AttributeClaimNamespace: "lab"}},
		},
		"a misspelt parameter is refused by name, with the known ones": {
			parameters: map[string]string{"pool": "tank", "objectclass": "S1"},
			wantErr:    []string{`"objectclass"`, "unknown", "chunkSize, cluster, gid, intercept, mode, objectClass, pool, uid"},
		},
		"a chunk size that is no size is refused":           {parameters: map[string]string{"chunkSize": "big"}, wantErr: []string{`"chunkSize"`, "1Mi"}},
		"a chunk size that is no power of two is refused":   {parameters: map[string]string{"chunkSize": "3Mi"}, wantErr: []string{"power of two"}},
		"a chunk size below a page is refused":              {parameters: map[string]string{"chunkSize": "1Ki"}, wantErr: []string{"4Ki"}},
		"a chunk size above the largest is refused":         {parameters: map[string]string{"chunkSize": "2Gi"}, wantErr: []string{"1Gi"}},
		"a negative uid is refused":                         {parameters: map[string]string{"uid": "-1"}, wantErr: []string{`"uid"`}},
		"a gid beyond what kernels have is refused":         {parameters: map[string]string{"gid": "4294967296"}, wantErr: []string{`"gid"`}},
		"a mode that is not octal is refused":               {parameters: map[string]string{"mode": "rwxr-x"}, wantErr: []string{`"mode"`, "0770"}},
		"a mode with other than permission bits is refused": {parameters: map[string]string{"mode": "100644"}, wantErr: []string{`"mode"`}},
		"interception is asked for or not":                  {parameters: map[string]string{"intercept": "yes"}, wantErr: []string{`"intercept"`, `"true"`}},
		"a pool that cannot be a label is refused":          {parameters: map[string]string{"pool": "a/b"}, wantErr: []string{`"pool"`}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseParameters(tc.parameters)
			if (err != nil) != (tc.wantErr != nil) {
				t.Fatalf("got error %v, want one: %t", err, tc.wantErr != nil)
			}
			for _, part := range tc.wantErr {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
			if err != nil {
				return
			}
			for key, value := range tc.want.Attributes {
				if got.Attributes[key] != value {
					t.Errorf("attribute %s is %q, want %q", key, got.Attributes[key], value)
				}
			}
			got.Attributes, tc.want.Attributes = nil, nil
			if got.Pool != tc.want.Pool || got.Cluster != tc.want.Cluster || got.ObjectClass != tc.want.ObjectClass ||
				got.ChunkSizeBytes != tc.want.ChunkSizeBytes || got.UID != tc.want.UID || got.GID != tc.want.GID || got.Mode != tc.want.Mode ||
				got.Intercept != tc.want.Intercept {
				t.Errorf("got %+v, want %+v", *got, tc.want)
			}
		})
	}
}

func TestIntercepts(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "false": false} {
		if got, err := Intercepts(map[string]string{"intercept": value}); got != want || err != nil {
			t.Errorf("%s: got %t, %v", value, got, err)
		}
	}
	if got, err := Intercepts(map[string]string{"pool": "tank"}); got || err != nil {
		t.Errorf("a volume without the attribute: got %t, %v", got, err)
	}
	if _, err := Intercepts(map[string]string{"intercept": "1"}); err == nil || !strings.Contains(err.Error(), `"intercept"`) {
		t.Errorf("a value that means nothing: got %v", err)
	}
}

func mountCapability(mode csi.VolumeCapability_AccessMode_Mode, fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
	}
}

func TestCheckCapability(t *testing.T) {
	writer := csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	tests := map[string]struct {
		capability *csi.VolumeCapability
		want       string
	}{
		"a shared file system is served":              {capability: mountCapability(writer, "")},
		"ReadWriteOncePod is served":                  {capability: mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, "weir")},
		"another file system is refused":              {capability: mountCapability(writer, "ext4"), want: `"ext4"`},
		"one writer among nodes is refused":           {capability: mountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, ""), want: "ReadWriteMany"},
		"an unknown access mode is refused":           {capability: mountCapability(csi.VolumeCapability_AccessMode_UNKNOWN, ""), want: "UNKNOWN"},
		"a missing capability is refused":             {want: "missing"},
		"a capability without access type is refused": {capability: &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer}}, want: "access type"},
		"a block volume is refused with what to do": {
			capability: &csi.VolumeCapability{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer},
				AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			},
			want: "volumeMode Filesystem",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := CheckCapability(tc.capability)
			if (err != nil) != (tc.want != "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestSizeText(t *testing.T) {
	for size, want := range map[uint64]string{
		0: "0 bytes", 1023: "1023 bytes", 1 << 10: "1Ki", 64 << 20: "64Mi", 3 << 29: "1.5Gi", 4<<30 + 8192: "4Gi", 10 << 40: "10Ti",
		18446744073709551615: "16777215.9Ti",
	} {
		if got := SizeText(size); got != want {
			t.Errorf("SizeText(%d) = %s, want %s", size, got, want)
		}
	}
}

func TestSizeAndFits(t *testing.T) {
	tests := map[string]struct {
		required, limit int64
		want            uint64
		bad             bool
	}{
		"what is required is given":                   {required: 5 << 30, want: 5 << 30},
		"no size gives the default":                   {want: DefaultBytes},
		"a limit below the default is kept":           {limit: 1 << 20, want: 1 << 20},
		"a limit above the default does not enlarge":  {limit: 8 << 30, want: DefaultBytes},
		"a few bytes are rounded up to a mebibyte":    {required: 1, want: 1 << 20},
		"what is required is rounded up":              {required: 5<<20 + 1, want: 6 << 20},
		"a limit that forbids to round up is refused": {required: 1, limit: 4096, bad: true},
		"a limit of a few bytes is refused":           {limit: 4096, bad: true},
		"a limit is rounded down":                     {limit: 3<<20 + 5, want: 3 << 20},
		"a limit below what is required is refused":   {required: 2, limit: 1, bad: true},
		"a negative size is refused":                  {required: -1, bad: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			capacity := &csi.CapacityRange{RequiredBytes: tc.required, LimitBytes: tc.limit}
			got, err := Size(capacity)
			if (err != nil) != tc.bad || got != tc.want {
				t.Fatalf("got %d, %v; want %d, an error: %t", got, err, tc.want, tc.bad)
			}
			if err == nil && !Fits(got, capacity) {
				t.Errorf("a volume of the %d bytes given does not fit what was asked for", got)
			}
		})
	}
	if Fits(2, &csi.CapacityRange{RequiredBytes: 3}) || Fits(4, &csi.CapacityRange{RequiredBytes: 1, LimitBytes: 3}) {
		t.Error("a volume outside the range fits")
	}
}
