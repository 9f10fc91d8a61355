package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

func TestShow(t *testing.T) {
	type answer struct {
		N int `json:"n"`
	}
	down := &api.Error{Code: api.CodeCannotReach, Message: "it refuses"}
	f := func(name string, json bool, every time.Duration, errs map[int]error, stdout, stderr, failure string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			var out, says bytes.Buffer
			var signals chan<- os.Signal
			r := &remote{json: json, watch: every, p: &process{stdout: &out, stderr: &says, notify: func(c chan<- os.Signal) { signals = c }}}
			began := time.Now()
			n := 0
			err := show(t.Context(), r, func(context.Context) (*answer, error) {
				n++
				if want := time.Duration(n-1) * every; time.Since(began) != want {
					t.Errorf("%s: question %d after %v", name, n, time.Since(began))
				}
				if n == 4 {
					signals <- syscall.SIGINT
					synctest.Wait()
				}
				return &answer{n}, errs[n]
			}, func(w io.Writer, a *answer) error {
				_, err := fmt.Fprintf(w, "TABLE %d\n", a.N)
				return err
			})
			if out.String() != stdout || says.String() != stderr || fmt.Sprint(err) != failure {
				t.Errorf("%s: %v, stdout %q, stderr %q", name, err, out.String(), says.String())
			}
		})
	}
	f("once", false, 0, nil, "TABLE 1\n", "", "<nil>")
	f("once, JSON", true, 0, nil, "{\n  \"n\": 1\n}\n", "", "<nil>")
	f("once, in vain", false, 0, map[int]error{1: errors.New("no")}, "", "", "no")
	f("watch", false, 2*time.Second, nil, "TABLE 1\n\nTABLE 2\n\nTABLE 3\n", "", "<nil>")
	f("watch, JSON", true, time.Second, nil, "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n", "", "<nil>")
	f("watch, in vain", true, time.Second, map[int]error{1: errors.New("no")}, "", "", "no")
	f("watch, a node restarts", true, time.Second, map[int]error{2: down, 4: context.Canceled},
		"{\"n\":1}\n{\"n\":3}\n", "starling: it refuses\nName another node with --server HOST[:PORT] or in STARLING_SERVER.\n", "<nil>")
}

// What stood on the terminal is overwritten, and nothing scrolls or wraps.
func TestFrame(t *testing.T) {
	f := func(text string, rows, columns int, want string) {
		t.Helper()
		if got := string(frame(text, "HEAD", rows, columns)); got != want {
			t.Errorf("%q in %d × %d: %q", text, rows, columns, got)
		}
	}
	f("a\nb\n", 24, 80, "\x1b[HHEAD\x1b[K\na\x1b[K\nb\x1b[K\n\x1b[J")
	f("a\nb\nc\n", 5, 80, "\x1b[HHEAD\x1b[K\na\x1b[K\nb\x1b[K\nc\x1b[K\n\x1b[J")
	f("a\nb\nc\n", 4, 80, "\x1b[HHEAD\x1b[K\na\x1b[K\n… 2 lines more\x1b[K\n\x1b[J")
	f("äöüß\n", 24, 4, "\x1b[HHEAD\x1b[K\näöüß\x1b[K\n\x1b[J")
	f("äöüßä\n", 24, 4, "\x1b[HHEAD\x1b[K\näöü…\x1b[K\n\x1b[J")
	f("a\nb\n", 1, 1, "\x1b[H…\x1b[K\n…\x1b[K\n\x1b[J")
}
