// Package command begins the operator's programs: it reads their command lines and sets up their logs.
package command

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"go.uber.org/zap/zapcore"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// statusUsage is the exit status of a program whose command line is wrong.
const statusUsage = 2

// Flags are the flags of a program of a version, whose help says in a sentence what it does. --version prints the version, and ends the process.
func Flags(program, version, does string) *flag.FlagSet {
	flags := flag.NewFlagSet(program, flag.ContinueOnError)
	flags.Usage = func() {
		_, _ = fmt.Fprintf(flags.Output(), "%s %s %s.\n\nFlags:\n", program, version, does)
		flags.PrintDefaults()
	}
	flags.BoolFunc("version", "print the version, and end", func(string) error {
		_, err := fmt.Fprintln(os.Stdout, program, version)
		if err == nil {
			os.Exit(0)
		}
		return err
	})
	return flags
}

// Begin reads the command line of a program by parse, and sets up its log at the level that levelOf finds in the options. It ends
// the process when the command line asks for help or the version only, or is wrong.
func Begin[O any](program string, parse func(args []string) (O, error), levelOf func(O) string) O {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err == nil {
		err = setUpLog(levelOf(o))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		os.Exit(statusUsage)
	}
	return o
}

func setUpLog(text string) error {
	level, err := zapcore.ParseLevel(text)
	if err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	ctrl.SetLogger(zap.New(zap.Level(level), zap.StacktraceLevel(zapcore.PanicLevel)))
	return nil
}
