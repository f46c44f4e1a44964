// Package contract checks that components, dashboards and alerts agree on the metrics that the reference documents.
package contract

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// metricsMin is a number of metrics that the reference surely has: fewer mean that it was not understood.
const metricsMin = 50

// Metric is a metric of the reference.
type Metric struct {
	// Kind is counter, gauge or histogram.
	Kind string
	// Labels are its own labels, without those that scraping adds.
	Labels []string
}

var (
	tableRow = regexp.MustCompile("(?m)^\\| `(weir_[a-z_]+)` \\| (counter|gauge|histogram) \\|([^|]*)\\|")
	foreign  = regexp.MustCompile("`((?:process|controller_runtime|workqueue)_[a-z_]+)`")
)

// Metrics returns the metrics that the reference page at path documents, by name.
func Metrics(path string) (map[string]Metric, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	found := map[string]Metric{}
	for _, row := range tableRow.FindAllStringSubmatch(string(content), -1) {
		if _, twice := found[row[1]]; twice {
			return nil, fmt.Errorf("%s documents %s twice", path, row[1])
		}
		found[row[1]] = Metric{Kind: row[2], Labels: strings.FieldsFunc(row[3], func(r rune) bool { return strings.ContainsRune("`, ", r) })}
	}
	if len(found) < metricsMin {
		return nil, fmt.Errorf("only %d metrics found in %s: has its layout changed?", len(found), path)
	}
	for _, name := range foreign.FindAllStringSubmatch(string(content), -1) {
		kind := "counter"
		if strings.HasPrefix(name[1], "controller_runtime") && strings.HasSuffix(name[1], "_time_seconds") {
			kind = "histogram"
		}
		found[name[1]] = Metric{Kind: kind}
	}
	return found, nil
}
