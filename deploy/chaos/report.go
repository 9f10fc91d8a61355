package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/starling-registry/starling/deploy/chaos/report"
	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// writeReports puts report.txt, report.json and report.html into the folder.
func writeReports(dir string, r *report.Report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := func(w io.Writer, r *report.Report) error { return report.Text(w, r, false) }
	var errs []error
	for name, write := range map[string]func(io.Writer, *report.Report) error{"report.txt": text, "report.json": report.JSON, "report.html": report.HTML} {
		errs = append(errs, writeFile(filepath.Join(dir, name), func(w io.Writer) error { return write(w, r) }))
	}
	return errors.Join(errs...)
}

// mayWrite makes the folder and tells whether there can be files in it.
func mayWrite(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "try-")
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(f.Name())
}

func writeTimeline(path string, t *verdict.Timeline) error {
	return writeFile(path, func(w io.Writer) error { return json.NewEncoder(w).Encode(t) })
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// colourful says whether what is written there may have colours: it is a
// terminal, and nobody asked for none (NO_COLOR).
func colourful(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// machine is what a run had to live with.
func machine() string {
	parts := []string{fmt.Sprintf("%d processors", runtime.NumCPU())}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kB int64
		if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &kB); err == nil {
			parts = append(parts, fmt.Sprintf("%.0f GB", float64(kB)/(1<<20)))
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		parts = append(parts, "Linux "+strings.TrimSpace(string(b)))
	}
	return strings.Join(append(parts, runtime.GOARCH), ", ")
}
