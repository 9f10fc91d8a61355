package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/starling-registry/starling/pkg/node"
)

func serveCommand(p *process) *cobra.Command {
	format := "json"
	if isTerminal(p.stderr) {
		format = "console"
	}
	s := newSettings(format)
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run a node",
		Long: `Run a node until SIGTERM or SIGINT. The first signal stops it cleanly, within
--drain-timeout; a second one at once, with exit status 1.

Each setting is a flag, an environment variable (--data-dir is
STARLING_DATA_DIR; an empty one counts as not set) and a key of the YAML file
that --config names (data-dir). Flags win over the environment, the environment
over the file. Unknown keys in the file are errors.`,
		Example: `  starling serve
  starling serve --bind 0.0.0.0 --data-dir /var/lib/starling
  STARLING_PORT=8858 starling serve --data-dir ./second
  starling serve --config node.yaml --check   # print all settings and where each comes from`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			s.opts.Version = versionString()
			if err := s.complete(p.env); err != nil {
				return err
			}
			if s.check {
				for _, v := range s.strange {
					fmt.Fprintf(p.stderr, "starling: %s names no setting and is ignored\n", v)
				}
				if err := s.write(p.stdout); err != nil {
					return errFailed{err}
				}
				return nil
			}
			if err := serve(c.Context(), p, s); err != nil {
				return errFailed{err}
			}
			return nil
		},
	}
	for _, g := range s.groups {
		c.Flags().AddFlagSet(g.FlagSet)
	}
	s.completions(c)
	c.SetUsageFunc(func(c *cobra.Command) error {
		var b strings.Builder
		fmt.Fprintf(&b, "Usage:\n  %s\n\nExamples:\n%s\n", c.UseLine(), c.Example)
		for _, g := range s.groups {
			fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.FlagUsages())
		}
		_, err := io.WriteString(c.OutOrStderr(), b.String())
		return err
	})
	return c
}

// serve runs a node until it is told to stop or fails.
func serve(ctx context.Context, p *process, s *settings) error {
	// Two: the second must not be lost while the first is looked at.
	signals := make(chan os.Signal, 2)
	p.notify(signals)

	// A node has little that lives long and much that lives for one request:
	// with Go's default of 100 it spends a tenth more of its CPU time on
	// collections (docs/BENCHMARKS.md).
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
	opts := s.opts
	logger, level := newLogger(p.stderr, s.logLevel, s.logFormat)
	opts.Logger, opts.SetLogLevel = logger, level.SetLevel
	if len(s.strange) > 0 {
		logger.Warn("environment variables that name no setting are ignored", zap.Strings("variables", s.strange))
	}
	start := func() (running, error) {
		n, err := node.Start(ctx, opts)
		if err == nil && s.logFormat == "console" {
			announce(p.stdout, &opts)
		}
		return n, err
	}
	return serveLives(ctx, start, signals, opts.DrainTimeout, logger)
}

// A node begins a new life of its own accord this often in that time, because its
// own does not count any more (node.ErrOutlived) or its log does not
// (node.ErrSuperseded): one that has to again and again shares its identity with
// another process.
const (
	newLives     = 3
	newLivesTime = 10 * time.Minute
)

// serveLives runs a node, and again if it must begin a new life.
func serveLives(ctx context.Context, start func() (running, error), signals <-chan os.Signal, within time.Duration, logger *zap.Logger) error {
	var begun []time.Time
	for {
		n, err := start()
		if err != nil {
			return err
		}
		err = supervise(ctx, n, signals, within, logger)
		if !errors.Is(err, node.ErrOutlived) && !errors.Is(err, node.ErrSuperseded) || errors.Is(err, errSecondSignal) {
			return err
		}
		now := time.Now()
		begun = append(begun, now)
		if len(begun) > newLives && now.Sub(begun[len(begun)-1-newLives]) < newLivesTime {
			return err
		}
		logger.Warn("the node begins a new life", zap.Error(err))
	}
}

// A running node; [node.Node] is one, and a test has others that fail or hang.
type running interface {
	Done() <-chan struct{}
	Err() error
	Stop(context.Context) error
}

// supervise waits until the node is told to stop or fails, and stops it within
// the given time.
func supervise(ctx context.Context, n running, signals <-chan os.Signal, within time.Duration, logger *zap.Logger) error {
	var failure error
	select {
	case sig := <-signals:
		logger.Info("stopping", zap.Stringer("signal", sig), zap.Duration("within", within))
	case <-n.Done():
		failure = n.Err()
		if failure == nil {
			failure = errors.New("the node ended by itself")
		}
	}

	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		stopped <- n.Stop(ctx)
	}()
	select {
	case err := <-stopped:
		return errors.Join(failure, err)
	case <-signals:
		// The process ends without waiting for the goroutine above.
		return errors.Join(failure, errSecondSignal)
	}
}

var errSecondSignal = errors.New("stopped at once by a second signal")

// announce tells people where the node can be reached. A log collector finds it
// in the node's own log line.
func announce(stdout io.Writer, opts *node.Options) {
	host := opts.Bind
	if a, err := netip.ParseAddr(host); err == nil && a.IsUnspecified() {
		host = opts.Advertise
	}
	at := func(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
	fmt.Fprintf(stdout, `Starling %s, node %s, data in %s
  HTTP  http://%s  (Nacos API under /nacos)
  gRPC  %s  (SDKs find it from the HTTP port)
Stop it with Ctrl-C.
`, opts.Version, opts.Name, opts.DataDir, at(opts.Port), at(opts.GRPCPort))
}

// newLogger makes a logger whose level may be changed.
func newLogger(w io.Writer, level, format string) (*zap.Logger, zap.AtomicLevel) {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.ISO8601TimeEncoder
	config.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(config)
	if format == "console" {
		config.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(config)
	}
	l, err := zap.ParseAtomicLevel(level)
	if err != nil {
		panic("BUG: --log-level was checked: " + err.Error())
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), l), zap.AddStacktrace(zapcore.DPanicLevel)), l
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	// Not every character device is one: /dev/null is not.
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
