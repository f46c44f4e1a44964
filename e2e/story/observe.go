package story

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"weir.dev/weir/e2e/kubectl"
)

// DashboardAddress is where the cluster's Prometheus answers on this machine.
const DashboardAddress = "http://127.0.0.1:30090"

// queryDeadline bounds one question to Prometheus.
const queryDeadline = 10 * time.Second

// query asks Prometheus for the value of an instant query that has one result.
func query(ctx context.Context, expression string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, queryDeadline)
	defer cancel()
	address := DashboardAddress + "/api/v1/query?query=" + url.QueryEscape(expression)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("ask Prometheus: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // read only
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return 0, fmt.Errorf("read Prometheus' answer: %w", err)
	}
	var answer struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, fmt.Errorf("prometheus answered %q: %w", body, err)
	}
	if len(answer.Data.Result) != 1 {
		return 0, fmt.Errorf("%s has %d results, want 1", expression, len(answer.Data.Result))
	}
	text, _ := answer.Data.Result[0].Value[1].(string)
	return strconv.ParseFloat(text, 64)
}

// observe waits until Prometheus has scraped at least what the story did: the tree's bytes, one update for each of its
// files and for each acknowledged record, and a restart. A counter begins anew with the engine's restart, so the
// greatest value of each series is what counts.
func (s *Story) observe(ctx context.Context) (string, error) {
	wanted := []struct {
		expression string
		atLeast    float64
	}{
		{`sum(max_over_time(weir_engine_bytes_total{direction="write"}[6h]))`, float64(s.tree.bytes)},
		{`sum(max_over_time(weir_engine_operations_total{op="update"}[6h]))`, float64(len(s.tree.entries) + s.writer.acknowledged)},
		{`sum(max_over_time(weir_engine_operations_total{op="fetch"}[6h]))`, float64(len(s.tree.entries))},
		{`count(up{job="weir-engine"} == 1)`, 3},
		{`sum(changes(weir_engine_start_time_seconds[6h]))`, 1},
		{`sum(weir_csi_operations_total{code="OK"})`, 1},
		{`count(weir_operator_build_info)`, 1},
	}
	for _, want := range wanted {
		err := kubectl.Eventually(ctx, rolloutDeadline, want.expression, func() (bool, string) {
			value, err := query(ctx, want.expression)
			return err == nil && value >= want.atLeast, fmt.Sprintf("%g (want at least %g), %v", value, want.atLeast, err)
		})
		if err != nil {
			return "", err
		}
	}
	written, err := query(ctx, wanted[0].expression)
	if err != nil {
		return "", err
	}
	updates, err := query(ctx, wanted[1].expression)
	return fmt.Sprintf("%.0f MB written in %.0f updates", written/1e6, updates), err
}

// reclaimedShare is how much of the tree's bytes must come back: the rest is allocation rounding and the pool's own
// metadata.
const reclaimedShare = 0.95

func (s *Story) reclaim(ctx context.Context) (string, error) {
	before, err := query(ctx, `sum(weir_engine_space_bytes{kind="used"})`)
	if err != nil {
		return "", err
	}
	_, err = s.Cluster.Run(ctx, "--namespace", AppNamespace, "delete", "persistentvolumeclaim", claimName, "--timeout=2m")
	if err != nil {
		return "", err
	}
	var after float64
	err = kubectl.Eventually(ctx, reclaimDeadline, "the space comes back", func() (bool, string) {
		after, err = query(ctx, `sum(weir_engine_space_bytes{kind="used"})`)
		returned := before - after
		return err == nil && returned >= reclaimedShare*float64(s.tree.bytes),
			fmt.Sprintf("used %.0f MB, was %.0f MB, %v", after/1e6, before/1e6, err)
	})
	return fmt.Sprintf("used space went from %.0f MB to %.0f MB", before/1e6, after/1e6), err
}
