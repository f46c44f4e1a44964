package story

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"weir.dev/weir/e2e/kubectl"
)

// writeScript writes numbered records for ever: each into a file of its own and onto the end of a log, each with fsync.
// Only when both have returned does it print the number: that is the acknowledgement.
const writeScript = `set -eu
mkdir -p /data/records
n=0
while :; do
	n=$((n + 1))
	printf 'record %08d\n' "$n" | dd of=/data/records/$n conv=fsync status=none
	printf 'record %08d\n' "$n" | dd of=/data/log oflag=append conv=notrunc,fsync status=none
	echo "$n"
done`

// readScript prints each record of 1…$1 that is wrong, in the files and in the log.
const readScript = `set -eu
n=0
while [ "$n" -lt "$1" ]; do
	n=$((n + 1))
	[ "$(cat /data/records/$n)" = "$(printf 'record %08d' "$n")" ] || echo "file $n"
done
head -n "$1" /data/log | awk '{ if ($0 != sprintf("record %08d", NR)) print "log line " NR } END { if (NR < '"$1"') print "log has " NR " lines" }'`

// Writes that must be acknowledged before the crash, and after it, for the story to go on.
const (
	writesBefore = 50
	writesAfter  = 50
)

// writer is what the third pod's crash test learnt.
type writer struct {
	acknowledged int
}

// lastAcknowledged is the number of the newest record that the writer's log confirms.
func (s *Story) lastAcknowledged(ctx context.Context) (int, error) {
	out, err := s.Cluster.Run(ctx, "--namespace", AppNamespace, "logs", "writer", "--tail=1")
	if err != nil {
		return 0, err
	}
	number := 0
	if text := strings.TrimSpace(out); text != "" {
		_, err = fmt.Sscanf(text, "%d", &number)
	}
	return number, err
}

func (s *Story) awaitWrites(ctx context.Context, atLeast int) error {
	return kubectl.Eventually(ctx, rolloutDeadline, fmt.Sprintf("%d acknowledged writes", atLeast), func() (bool, string) {
		number, err := s.lastAcknowledged(ctx)
		return err == nil && number >= atLeast, fmt.Sprintf("%d writes, %v", number, err)
	})
}

func (s *Story) crash(ctx context.Context) (string, error) {
	if err := s.startPod(ctx, "writer", 0, "sh", "-c", writeScript); err != nil {
		return "", err
	}
	if err := s.awaitWrites(ctx, writesBefore); err != nil {
		return "", err
	}
	engines, err := s.engines(ctx)
	if err != nil {
		return "", err
	}
	victim := engines[len(engines)-1]
	restarts, err := s.restarts(ctx, victim)
	if err != nil {
		return "", err
	}
	if err := s.Cluster.KillContainer(ctx, SystemNamespace, victim); err != nil {
		return "", err
	}
	killed := time.Now()
	before, err := s.lastAcknowledged(ctx)
	if err != nil {
		return "", err
	}
	if err := s.awaitRestart(ctx, victim, restarts); err != nil {
		return "", err
	}
	back := time.Since(killed)
	if err := s.awaitWrites(ctx, before+writesAfter); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s was killed after %d writes and Ready again after %.1f s; the writer went on", victim, before,
		back.Seconds()), nil
}

func (s *Story) restarts(ctx context.Context, pod string) (int, error) {
	var object struct {
		Status struct {
			ContainerStatuses []struct {
				Ready        bool
				RestartCount int
			}
		}
	}
	if err := s.Cluster.Get(ctx, &object, "--namespace", SystemNamespace, "pod", pod); err != nil {
		return 0, err
	}
	if len(object.Status.ContainerStatuses) == 0 || !object.Status.ContainerStatuses[0].Ready {
		return 0, errors.New("the engine's container is not ready")
	}
	return object.Status.ContainerStatuses[0].RestartCount, nil
}

func (s *Story) awaitRestart(ctx context.Context, pod string, before int) error {
	return kubectl.Eventually(ctx, rolloutDeadline, pod+" is Ready again", func() (bool, string) {
		now, err := s.restarts(ctx, pod)
		return err == nil && now > before, fmt.Sprintf("%d restarts (before: %d), %v", now, before, err)
	})
}

func (s *Story) checkAcknowledged(ctx context.Context) (string, error) {
	number, err := s.lastAcknowledged(ctx)
	if err != nil {
		return "", err
	}
	s.writer.acknowledged = number
	if err := s.deletePod(ctx, "writer"); err != nil {
		return "", err
	}
	if err := s.startPod(ctx, "auditor", 1, "sleep", "infinity"); err != nil {
		return "", err
	}
	wrong, err := s.shell(ctx, "auditor", nil, readScript, fmt.Sprint(number))
	if err != nil {
		return "", err
	}
	if wrong != "" {
		return "", fmt.Errorf("acknowledged writes are lost or wrong: %s", strings.ReplaceAll(strings.TrimSpace(wrong), "\n", ", "))
	}
	return fmt.Sprintf("%d of %d acknowledged writes are there, in files and in the log", number, number),
		s.deletePod(ctx, "auditor")
}
