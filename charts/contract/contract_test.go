package contract

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	reference = "../../docs/reference/metrics.md"
	runbooks  = "../../docs/how-to/alerts.md"
	boards    = "../weir/dashboards/*.json"
	rules     = "../weir/alerts/weir.rules.yaml"
	ruleTests = "../weir/alerts/*_test.yaml"
)

var (
	identifier = regexp.MustCompile(`\b(?:weir|process|controller_runtime|workqueue)_[a-z_]+\b`)
	quoted     = regexp.MustCompile(`"[^"]*"`)
	selector   = regexp.MustCompile(`(weir_[a-z_]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
)

// targetLabels are set by the scrape configuration, rank by every engine.
var targetLabels = []string{"job", "instance", "pod", "node", "rank", "le"}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func metrics(t *testing.T) map[string]Metric {
	t.Helper()
	found, err := Metrics(reference)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// expressions returns each PromQL expression with where it stands.
func expressions(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	var walk func(node any, title string)
	walk = func(node any, title string) {
		switch node := node.(type) {
		case map[string]any:
			if own, ok := node["title"].(string); ok {
				title = own
			}
			for _, key := range []string{"expr", "definition"} {
				if expression, ok := node[key].(string); ok {
					found["dashboard: "+title] = append(found["dashboard: "+title], expression)
				}
			}
			for _, child := range node {
				walk(child, title)
			}
		case []any:
			for _, child := range node {
				walk(child, title)
			}
		}
	}
	files, err := filepath.Glob(boards)
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards at %s, %v", boards, err)
	}
	for _, file := range files {
		var board any
		if err := json.Unmarshal([]byte(read(t, file)), &board); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		walk(board, "")
	}
	for _, rule := range alerts(t) {
		found["alert "+rule.Alert] = []string{rule.Expr}
	}
	return found
}

type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func alerts(t *testing.T) []alert {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal([]byte(read(t, rules)), &file); err != nil {
		t.Fatalf("%s: %v", rules, err)
	}
	var all []alert
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) == 0 {
		t.Fatalf("no alerts found in %s", rules)
	}
	return all
}

// base returns the metric that a series name belongs to: a histogram's series have suffixes.
func base(name string, known map[string]Metric) (string, bool) {
	if _, ok := known[name]; ok {
		return name, true
	}
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if trimmed, cut := strings.CutSuffix(name, suffix); cut && known[trimmed].Kind == "histogram" {
			return trimmed, true
		}
	}
	return name, false
}

func TestDashboardAndAlertsUseOnlyDocumentedMetricsAndLabels(t *testing.T) {
	known := metrics(t)
	for where, list := range expressions(t) {
		for _, expression := range list {
			for _, name := range identifier.FindAllString(quoted.ReplaceAllString(expression, `""`), -1) {
				metric, ok := base(name, known)
				if !ok {
					t.Errorf("%s uses %s, which %s does not document", where, name, reference)
					continue
				}
				if known[metric].Kind == "histogram" && metric == name {
					t.Errorf("%s uses the histogram %s without _bucket, _count or _sum", where, name)
				}
			}
			for _, match := range selector.FindAllStringSubmatch(expression, -1) {
				metric, _ := base(match[1], known)
				for _, label := range matcher.FindAllStringSubmatch(quoted.ReplaceAllString(match[2], `""`), -1) {
					if !slices.Contains(targetLabels, label[1]) && !slices.Contains(known[metric].Labels, label[1]) {
						t.Errorf("%s selects %s by label %s, which it does not have", where, metric, label[1])
					}
				}
			}
		}
	}
}

// TestExpressionsOfDashboardsAreValid has promtool parse what Grafana would send, with its variables filled in.
func TestExpressionsOfDashboardsAreValid(t *testing.T) {
	program, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("promtool is not installed: run make setup, and put its directory on the PATH: %v", err)
	}
	type recording struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var all []recording
	filled := regexp.MustCompile(`\$__rate_interval`)
	variable := regexp.MustCompile(`\$[a-z]+`)
	for where, list := range expressions(t) {
		for _, expression := range list {
			if !strings.HasPrefix(where, "dashboard: ") || strings.HasPrefix(expression, "label_values(") {
				continue // alerts are checked as rules, and label_values is Grafana's own
			}
			expression = variable.ReplaceAllString(filled.ReplaceAllString(expression, "5m"), ".*")
			all = append(all, recording{Record: fmt.Sprintf("dashboard:%d", len(all)), Expr: expression})
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboards", "rules": all}}})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program, "check", "rules", file).CombinedOutput(); err != nil || len(all) == 0 {
		t.Errorf("%d expressions: %v\n%s", len(all), err, out)
	}
}

func TestEachAlertHasARunbookAndAUnitTest(t *testing.T) {
	headings := map[string]bool{}
	for line := range strings.SplitSeq(read(t, runbooks), "\n") {
		if heading, ok := strings.CutPrefix(line, "### "); ok {
			headings[strings.ToLower(heading)] = true
		}
	}
	files, err := filepath.Glob(ruleTests)
	if err != nil || len(files) == 0 {
		t.Fatalf("no rule tests at %s, %v", ruleTests, err)
	}
	var tests strings.Builder
	for _, file := range files {
		tests.WriteString(read(t, file))
	}
	for _, rule := range alerts(t) {
		anchor := strings.ToLower(rule.Alert)
		if want := "docs/how-to/alerts.md#" + anchor; rule.Annotations["runbook"] != want || !headings[anchor] {
			t.Errorf("%s: runbook is %q, want %q with that heading in %s", rule.Alert, rule.Annotations["runbook"], want, runbooks)
		}
		delete(headings, anchor)
		if !strings.Contains(tests.String(), `alertname="`+rule.Alert+`", alertstate="firing"`) {
			t.Errorf("%s: no rule test in which it fires", rule.Alert)
		}
		if severity := rule.Labels["severity"]; severity != "warning" && severity != "critical" {
			t.Errorf("%s: severity is %q, want warning or critical", rule.Alert, severity)
		}
		if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
			t.Errorf("%s: summary or description is missing", rule.Alert)
		}
	}
	for heading := range headings {
		t.Errorf("%s has a runbook for %s, which is no alert", runbooks, heading)
	}
}

func TestCountersAndUnitsAreNamedAsPrometheusAsks(t *testing.T) {
	for name, metric := range metrics(t) {
		if !strings.HasPrefix(name, "weir_") {
			continue
		}
		if (metric.Kind == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s: a counter, and only a counter, ends in _total", name, metric.Kind)
		}
		if metric.Kind == "histogram" && !strings.HasSuffix(name, "_seconds") {
			t.Errorf("%s is a histogram without unit", name)
		}
	}
}

// exporters are the folders whose sources name the metrics of a component, by the start of the metrics' names.
var exporters = map[string][]string{
	"../../engine/daemon/src": {"weir_engine_", "weir_pool_", "weir_container_"},
	"../../client/fuse/src":   {"weir_mountd_"},
	"../../operator/internal": {"weir_operator_"},
	"../../csi/internal":      {"weir_csi_"},
}

var literal = regexp.MustCompile(`"(weir_[a-z_]+)[" {]`)

// exported returns the metric names that stand in the sources of a folder.
func exported(t *testing.T, folder string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if extension := filepath.Ext(path); extension != ".rs" && extension != ".go" {
			return nil
		}
		for _, match := range literal.FindAllStringSubmatch(read(t, path), -1) {
			found[match[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestComponentsExportWhatIsDocumentedAndNothingElse(t *testing.T) {
	known := metrics(t)
	for folder, prefixes := range exporters {
		own := func(name string) bool {
			return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		}
		sources := exported(t, folder)
		for name, metric := range known {
			// Some libraries add the suffix of counters by themselves.
			if own(name) && !sources[name] && (metric.Kind != "counter" || !sources[strings.TrimSuffix(name, "_total")]) {
				t.Errorf("%s is documented, but not in the sources of %s", name, folder)
			}
		}
		for name := range sources {
			_, documented := base(name, known)
			if own(name) && !documented && known[name+"_total"].Kind != "counter" {
				t.Errorf("%s is in the sources of %s, but not documented", name, folder)
			}
		}
	}
}
