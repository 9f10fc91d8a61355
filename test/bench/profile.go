package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// profile takes a CPU profile of a node under each of the loads that count,
// for the compiler (make pgo) or for a person.
func profile(bin, dir string) error {
	for _, scenario := range []string{"register", "query", "fan-out", "http-list", "http-full-beat"} {
		port, err := freeNodePort(nil)
		if err != nil {
			return err
		}
		s, err := startNode(bin, port)
		if err != nil {
			return err
		}
		load := exec.Command(bin, "bench", scenario, "--servers", s.addr(), "--duration", "15s")
		load.Stderr = os.Stderr
		err = load.Start()
		if err == nil {
			time.Sleep(5 * time.Second) // connections are set up and subscribed
			err = fetch("http://"+s.addr()+"/debug/pprof/profile?seconds=8", filepath.Join(dir, scenario+".prof"))
			if waitErr := load.Wait(); err == nil {
				err = waitErr
			}
		}
		s.stop()
		if err != nil {
			return fmt.Errorf("profile of %s: %w", scenario, err)
		}
	}
	return nil
}

func fetch(url, file string) error {
	r, err := http.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, r.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r.Body); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
