package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/inventory"
)

func TestTheCommandLineIsChecked(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	for want, args := range map[string][]string{
		"unexpected argument": {"extra"},
		"--json goes with":    {"--node=n", "--json"},
		"--node is empty":     {},
		"--interval is less":  {"--node=n", "--interval=1ms"},
		"":                    {"--once", "--json"},
	} {
		_, err := parse(args)
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

// A drive of a machine that has none by its number: the dry run says that it can't be opened, and changes nothing.
func TestADryRunSaysWhyADriveIsNotEligible(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"block/nvme0n1/wwid": "eui.0025385b71b00a2f", "block/nvme0n1/size": "2097152", "block/nvme0n1/dev": "4095:1048575", "block/nvme0n1/device/state": "dead",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := options{tree: drive.Tree{Sys: root}, once: true, json: true}
	var out bytes.Buffer
	if err := dryRun(&out, o); err != nil {
		t.Fatal(err)
	}
	var seen []inventory.Seen
	if err := json.Unmarshal(out.Bytes(), &seen); err != nil || len(seen) != 1 || seen[0].Name != "nvme-eui-0025385b71b00a2f" || len(seen[0].Obstacles) == 0 {
		t.Errorf("%s %v", out.String(), err)
	}
	out.Reset()
	o.json = false
	if err := dryRun(&out, o); err != nil || !strings.Contains(out.String(), "nvme-eui-0025385b71b00a2f") || !strings.Contains(out.String(), "Unreadable") {
		t.Errorf("%s %v", out.String(), err)
	}
}
