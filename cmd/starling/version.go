package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version is the release; the linker sets it: -X main.version=v1.2.3.
var version string

// versionString is the release, or what the go command knows of the source.
func versionString() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and what it was built from",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := fmt.Fprintf(c.OutOrStdout(), "starling %s (%s)\n", versionString(), buildDetails()); err != nil {
				return errFailed{err}
			}
			return nil
		},
	}
}

// buildDetails lists the commit, if the go command recorded it, the Go release
// and the platform.
func buildDetails() string {
	details := []string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				details = append(details, "commit "+s.Value[:min(12, len(s.Value))])
			case s.Key == "vcs.modified" && s.Value == "true":
				details = append(details, "with local changes")
			}
		}
	}
	return strings.Join(append(details, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH), ", ")
}
