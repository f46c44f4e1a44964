package drive

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/operator/api/v1alpha1"
)

// machine is a directory that looks like a node's sysfs.
type machine struct {
	t    *testing.T
	root string
	tree Tree
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, root: t.TempDir()}
	m.tree = Tree{Sys: filepath.Join(m.root, "sys"), Mountinfo: filepath.Join(m.root, "mountinfo"), Loops: filepath.Join(m.root, "loops")}
	m.write("mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
	m.write("sys/block/sda/size", "1000\n")
	return m
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	full := filepath.Join(m.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) link(path, to string) {
	m.t.Helper()
	full := filepath.Join(m.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink(to, full); err != nil {
		m.t.Fatal(err)
	}
}

// nvme adds a drive with one controller and one namespace.
func (m *machine) nvme(name, wwid, number string) {
	controller, _, _ := strings.Cut(strings.TrimPrefix(name, "nvme"), "n")
	device := "sys/devices/nvme" + controller
	m.write(device+"/model", "Ultra 9000\x01             \n")
	m.write(device+"/serial", "S4E\xff1234  \n")
	m.write(device+"/firmware_rev", "1.0\n")
	m.write(device+"/state", "live\n")
	m.write(device+"/address", "0000:0"+controller+":00.0\n")
	m.write(device+"/device/numa_node", "1\n")
	m.link(device+"/device/driver", "../../../bus/pci/drivers/nvme")
	block := "sys/block/" + name
	m.write(block+"/wwid", wwid+"\n")
	m.write(block+"/size", "2097152\n")
	m.write(block+"/ro", "0\n")
	m.write(block+"/dev", number+"\n")
	m.link(block+"/device", "../../devices/nvme"+controller)
}

func (m *machine) find() []Drive {
	m.t.Helper()
	drives, err := m.tree.Find()
	if err != nil {
		m.t.Fatal(err)
	}
	return drives
}

func reasons(findings []Finding) []string {
	var list []string
	for _, f := range findings {
		list = append(list, f.Reason)
	}
	return list
}

func TestDrivesAreDescribedAsSysfsTells(t *testing.T) {
	m := newMachine(t)
	m.nvme("nvme3n1", "eui.0025385b71b00a2f", "259:7")
	m.write("sys/block/nvme3c0n1/hidden", "1\n")
	want := []Drive{{
		Identity: "eui.0025385b71b00a2f", KernelName: "nvme3n1", Kind: v1alpha1.DriveNVMe, Model: "Ultra 9000", Serial: "S4E 1234",
		Firmware: "1.0", Bytes: 1 << 30, Major: 259, Minor: 7, NUMANode: new(int32(1)), PCIAddress: "0000:03:00.0", Driver: "nvme",
		States: []string{"live"},
	}}
	if diff := cmp.Diff(want, m.find()); diff != "" {
		t.Error(diff)
	}
}

func TestANamespaceBehindTwoControllersWorksWhileOneDoes(t *testing.T) {
	m := newMachine(t)
	m.nvme("nvme0n1", "eui.0025385b71b00a2f", "259:7")
	if err := os.Remove(filepath.Join(m.root, "sys/block/nvme0n1/device")); err != nil {
		t.Fatal(err)
	}
	m.write("sys/devices/subsystem/model", "Ultra 9000")
	for name, state := range map[string]string{"nvme0": "dead", "nvme1": "live"} {
		m.write("sys/devices/subsystem/"+name+"/state", state)
	}
	m.link("sys/block/nvme0n1/device", "../../devices/subsystem")
	d := m.find()[0]
	if !slices.Equal(d.States, []string{"dead", "live"}) || d.Health() != nil {
		t.Errorf("%v %v", d.States, d.Health())
	}
	m.write("sys/devices/subsystem/nvme1/state", "deleting")
	d = m.find()[0]
	if f := d.Health(); f == nil || f.Reason != v1alpha1.ReasonControllerDown {
		t.Errorf("no controller works: %v", f)
	}
}

func TestWhatKeepsADriveFromEngines(t *testing.T) {
	owner := &Owner{System: "weir", Rank: 1, Target: 2}
	store := func(rank uint32) Content {
		return Content{Kind: ContentStore, Store: &Store{System: "weir", Rank: rank, Target: 2}}
	}
	tests := map[string]struct {
		change func(*machine)
		drive  func(*Drive)
		owner  *Owner
		want   []string
	}{
		"nothing":           {},
		"nothing, an owner": {owner: owner},
		"a mount": {
			change: func(m *machine) { m.write("mountinfo", "30 22 259:0 / /data\\040x rw - xfs /dev/nvme0n1 rw\n") },
			drive:  func(d *Drive) { d.Claimed = true },
			want:   []string{v1alpha1.ReasonMounted},
		},
		"a mounted partition with a volume on it": {
			change: func(m *machine) {
				m.write("sys/block/nvme0n1/nvme0n1p1/partition", "1\n")
				m.write("sys/block/nvme0n1/nvme0n1p1/dev", "259:1\n")
				m.write("sys/block/nvme0n1/nvme0n1p1/holders/dm-0/name", "vg\n")
				m.write("mountinfo", "30 22 259:1 / /boot rw - ext4 /dev/nvme0n1p1 rw\n")
			},
			want: []string{v1alpha1.ReasonMounted, v1alpha1.ReasonInUse, v1alpha1.ReasonPartitioned},
		},
		"LVM": {
			change: func(m *machine) { m.write("sys/block/nvme0n1/holders/dm-3/name", "vg\n") },
			drive:  func(d *Drive) { d.Claimed = true },
			owner:  owner,
			want:   []string{v1alpha1.ReasonInUse},
		},
		"a program": {
			drive: func(d *Drive) { d.Claimed = true },
			want:  []string{v1alpha1.ReasonInUse},
		},
		"its own engine":  {drive: func(d *Drive) { d.Claimed = true }, owner: owner},
		"no identity":     {change: func(m *machine) { m.write("sys/block/nvme0n1/wwid", "eui.0000000000000000\n") }, want: []string{v1alpha1.ReasonNoIdentity}},
		"a hostile name":  {change: func(m *machine) { m.write("sys/block/nvme0n1/wwid", "eui.../../../etc\n") }, want: []string{v1alpha1.ReasonNoIdentity}},
		"no serial":       {change: func(m *machine) { m.write("sys/block/nvme0n1/wwid", "nvme.1b36-2020-51454d55-00000001\n") }, want: []string{v1alpha1.ReasonNoIdentity}},
		"write protected": {change: func(m *machine) { m.write("sys/block/nvme0n1/ro", "1\n") }, want: []string{v1alpha1.ReasonReadOnly}},
		"little space":    {change: func(m *machine) { m.write("sys/block/nvme0n1/size", "131071\n") }, want: []string{v1alpha1.ReasonTooSmall}},
		"no size":         {change: func(m *machine) { m.write("sys/block/nvme0n1/size", "-5\n") }, want: []string{v1alpha1.ReasonUnreadable}},
		"an absurd size":  {change: func(m *machine) { m.write("sys/block/nvme0n1/size", "9223372036854775807\n") }, want: []string{v1alpha1.ReasonUnreadable}},
		"no number":       {change: func(m *machine) { m.write("sys/block/nvme0n1/dev", "259\n") }, want: []string{v1alpha1.ReasonUnreadable}},
		"nobody looked":   {drive: func(d *Drive) { d.Content = Content{} }, owner: owner, want: []string{v1alpha1.ReasonUnreadable}},
		"a warning":       {drive: func(d *Drive) { d.Warnings = []string{"read only"} }, want: []string{v1alpha1.ReasonHealthWarning}},
		"a warning, its owner": {
			drive: func(d *Drive) { d.Warnings = []string{"read only"} }, owner: owner,
		},
		"a store":            {drive: func(d *Drive) { d.Content = store(1) }, want: []string{v1alpha1.ReasonHoldsStore}},
		"the owner's store":  {drive: func(d *Drive) { d.Content = store(1) }, owner: owner},
		"another's store":    {drive: func(d *Drive) { d.Content = store(3) }, owner: owner, want: []string{v1alpha1.ReasonHoldsStore}},
		"a rank of no int32": {drive: func(d *Drive) { d.Content = store(1<<32 - 1) }, owner: &Owner{System: "weir", Rank: -1, Target: 2}, want: []string{v1alpha1.ReasonHoldsStore}},
		"a damaged store":    {drive: func(d *Drive) { d.Content = Content{Kind: ContentDamagedStore} }, want: []string{v1alpha1.ReasonHoldsStore}},
		"its damaged store":  {drive: func(d *Drive) { d.Content = Content{Kind: ContentDamagedStore} }, owner: owner},
		"ext4, although assigned": {
			drive: func(d *Drive) { d.Content = Content{Kind: ContentForeign, Signature: "ext4"} }, owner: owner,
			want: []string{v1alpha1.ReasonForeignSignature},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.nvme("nvme0n1", "eui.0025385b71b00a2f", "259:0")
			if tc.change != nil {
				tc.change(m)
			}
			d := m.find()[0]
			d.Content = Content{Kind: ContentBlank}
			if tc.drive != nil {
				tc.drive(&d)
			}
			if got := reasons(d.Obstacles(tc.owner)); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v: %v", got, tc.want, d.Obstacles(tc.owner))
			}
		})
	}
}

func TestLoopDevicesStandInOnlyForFilesOfTheirDirectory(t *testing.T) {
	m := newMachine(t)
	for name, backing := range map[string]string{
		"loop0": "/var/lib/loops/Drive_A.img", "loop1": "/elsewhere/other.img", "loop2": "", "loop3": "/var/lib/loops/gone.img (deleted)", "loop4": "/",
	} {
		m.write("sys/block/"+name+"/loop/backing_file", backing+"\n")
		m.write("sys/block/"+name+"/size", "2097152\n")
		m.write("sys/block/"+name+"/dev", "7:0\n")
	}
	m.write("loops/Drive_A.img", "")
	drives := m.find()
	if len(drives) != 1 || drives[0].Identity != "loop.Drive_A.img" || drives[0].Kind != v1alpha1.DriveLoop || drives[0].KernelName != "loop0" {
		t.Errorf("%+v", drives)
	}
	m.tree.Loops = ""
	if drives := m.find(); len(drives) != 0 {
		t.Errorf("loop devices without leave: %+v", drives)
	}
}

func TestNamesAreLabelsAndTellIdentitiesApart(t *testing.T) {
	identities := []string{
		"eui.0025385b71b00a2f", "eui.0025385b71b00a2e", "eui.01000000010000005cd2e4c2dbb55051",
		"uuid.1d6e3a2b-0000-4000-8000-000000000000", "nvme.1b36-64656164-51454d55-00000001", "nvme.1b36-64656164-51454d55-00000002",
		"loop.Drive_A.img", "loop.drive-a.img", "loop." + strings.Repeat("long", 60), "uuid." + strings.Repeat("1", 80),
	}
	seen := map[string]string{}
	for _, identity := range identities {
		name := Name(identity)
		if other, twice := seen[name]; twice {
			t.Errorf("%s and %s are both called %s", identity, other, name)
		}
		seen[name] = identity
		if len(name) > labelBytes || unfitting.ReplaceAllString(name, "-") != name {
			t.Errorf("%s is called %s, which is no label", identity, name)
		}
	}
	if name := Name("eui.0025385b71b00a2f"); name != "nvme-eui-0025385b71b00a2f" {
		t.Error(name)
	}
}
