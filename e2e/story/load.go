package story

import (
	"context"
	"fmt"
	"strings"

	"weir.dev/weir/e2e/kubectl"
)

// What the load is: as much data as a rebuild takes some seconds for, and little enough for small drives.
const (
	stillFiles   = 96
	stillKiB     = 256
	changedFiles = 400
	changedKiB   = 64
)

// stallScript is shared by writer and reader: it times what they do, and says after each turn how many there were, the longest stall in
// milliseconds, and how many failed.
const stallScript = `turns=0; longest=0; failed=0; last=$(date +%s%3N)
turn() {
	now=$(date +%s%3N); gap=$((now - last)); last=$now; turns=$((turns + 1))
	[ "$gap" -le "$longest" ] || longest=$gap
	echo "$turns $longest $failed"
}
`

// stillScript makes the files that the reader reads, and a list of their checksums.
var stillScript = fmt.Sprintf(`set -eu
mkdir -p /data/still /data/changed
for i in $(seq %d); do head -c %dK /dev/urandom >/data/still/$i; done
cd /data && sha256sum still/* >still.sums && sync still.sums`, stillFiles, stillKiB)

// changeScript writes files again and again, each with fsync, and keeps the checksum of each that was acknowledged. What fails is counted.
var changeScript = stallScript + fmt.Sprintf(`mkdir -p /tmp/sums
n=0
while [ ! -e /tmp/stop ]; do
	n=$(((n + 1) %% %d))
	head -c %dK /dev/urandom >/tmp/block
	sum=$(sha256sum </tmp/block)
	rm -f /tmp/sums/$n
	if dd if=/tmp/block of=/data/changed/$n bs=%dk conv=fsync status=none; then
		echo "${sum%%%% *}  changed/$n" >/tmp/sums/$n
	else
		failed=$((failed + 1))
	fi
	turn
done
cat /tmp/sums/* >/data/changed.sums && sync /data/changed.sums && touch /tmp/stopped
exec sleep infinity`, changedFiles, changedKiB, changedKiB)

// rereadScript reads past the kernel's cache, and compares.
var rereadScript = stallScript + fmt.Sprintf(`while [ ! -e /tmp/stop ]; do
	while read -r sum name; do
		[ ! -e /tmp/stop ] || break
		now=$(dd if="/data/$name" bs=%dk iflag=direct status=none | sha256sum) || now=failed
		[ "${now%%%% *}" = "$sum" ] || failed=$((failed + 1))
		turn
	done </data/still.sums
done
touch /tmp/stopped
exec sleep infinity`, stillKiB)

// turns is how far a pod of the load is.
type turns struct{ done, longest, failed int }

// turnsOf reads how far a pod of the load is. One whose operation has failed is an error.
func (s *Story) turnsOf(ctx context.Context, pod string) (turns, error) {
	out, err := s.Cluster.Run(ctx, "--namespace", AppNamespace, "logs", pod, "--tail=1")
	if err != nil {
		return turns{}, err
	}
	var t turns
	if text := strings.TrimSpace(out); text != "" {
		if _, err := fmt.Sscanf(text, "%d %d %d", &t.done, &t.longest, &t.failed); err != nil {
			return t, fmt.Errorf("%s says %q: %w", pod, text, err)
		}
	}
	if t.failed > 0 {
		return t, fmt.Errorf("%s has seen %d errors in %d turns", pod, t.failed, t.done)
	}
	return t, nil
}

// loadPods are the pods of the load.
var loadPods = []string{"changer", "rereader"}

// startLoad starts writer and reader on two nodes.
func (s *Story) startLoad(ctx context.Context, writerNode, readerNode string) error {
	if err := s.startPodOn(ctx, "changer", writerNode, keptClaim, "sh", "-c", stillScript+"\n"+changeScript); err != nil {
		return err
	}
	if err := s.goesOn(ctx, "changer"); err != nil {
		return err
	}
	if err := s.startPodOn(ctx, "rereader", readerNode, keptClaim, "sh", "-c", rereadScript); err != nil {
		return err
	}
	return s.goesOn(ctx, "rereader")
}

// goesOn waits until pods of the load have done some more.
func (s *Story) goesOn(ctx context.Context, pods ...string) error {
	const more = 20
	for _, pod := range pods {
		before, err := s.turnsOf(ctx, pod)
		if err != nil {
			return err
		}
		var now turns
		var failed error
		err = kubectl.Eventually(ctx, rolloutDeadline, pod+" goes on", func() (bool, string) {
			now, failed = s.turnsOf(ctx, pod)
			return now.failed > 0 || (failed == nil && now.done >= before.done+more), fmt.Sprintf("%d turns, before %d, %v", now.done, before.done, failed)
		})
		if err != nil {
			return err
		}
		if now.failed > 0 {
			return failed
		}
	}
	return nil
}

// stalls says how far the load is, and how long each pod of it has waited at most.
func (s *Story) stalls(ctx context.Context) (string, error) {
	var words []string
	for _, pod := range loadPods {
		t, err := s.turnsOf(ctx, pod)
		if err != nil {
			return "", err
		}
		words = append(words, fmt.Sprintf("%s: %d turns, none failed, longest stall %.1f s", pod, t.done, float64(t.longest)/1000))
	}
	return strings.Join(words, "; "), nil
}

// endLoad ends writer and reader and verifies every file from the reader's node.
func (s *Story) endLoad(ctx context.Context) (string, error) {
	for _, pod := range loadPods {
		if _, err := s.shell(ctx, pod, nil, "touch /tmp/stop"); err != nil {
			return "", err
		}
	}
	for _, pod := range loadPods {
		if _, err := s.shell(ctx, pod, nil, "until [ -e /tmp/stopped ]; do sleep 0.1; done"); err != nil {
			return "", err
		}
	}
	stalls, err := s.stalls(ctx)
	if err != nil {
		return "", err
	}
	out, err := s.shell(ctx, "rereader", nil, "cd /data && sha256sum --quiet --strict --check still.sums changed.sums && cat still.sums changed.sums | wc -l")
	if err != nil {
		return "", err
	}
	for _, pod := range loadPods {
		if err := s.deletePod(ctx, pod); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s files have the same SHA-256; %s", strings.TrimSpace(out), stalls), nil
}
