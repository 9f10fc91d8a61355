package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// serveFunc makes the client of a server.
func serveFunc(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := NewClient(strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refuse(w http.ResponseWriter, e *Error) {
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": e})
}

func TestBackupIsWholeOrAnError(t *testing.T) {
	const content = "some rows"
	const sum = "3818bf0061cd5584782d3b34ffc301d9cf78d168896838bb62d7091151a25e2e"
	f := func(name, code string, h http.HandlerFunc) {
		t.Helper()
		var w bytes.Buffer
		b, err := serveFunc(t, h).Backup(t.Context(), &w)
		if CodeOf(err) != code || (err == nil) != (code == "") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (w.String() != content || b.Bytes != int64(len(content)) || b.Node != "a" || len(b.SHA256) != 64) {
			t.Errorf("%s: %+v with %q", name, b, w.String())
		}
	}
	send := func(w http.ResponseWriter, bytes, sum string) {
		w.Header().Set("Content-Type", BackupType)
		w.Header().Set(HeaderNode, "a")
		w.Header().Set("Trailer", HeaderBytes+", "+HeaderSHA256)
		_, _ = io.WriteString(w, content)
		w.Header().Set(HeaderBytes, bytes)
		w.Header().Set(HeaderSHA256, sum)
	}
	f("whole", "", func(w http.ResponseWriter, _ *http.Request) { send(w, "9", sum) })
	f("another sum", CodeUnreadable, func(w http.ResponseWriter, _ *http.Request) { send(w, "9", "ff"+sum[2:]) })
	f("another size", CodeUnreadable, func(w http.ResponseWriter, _ *http.Request) { send(w, "8", sum) })
	f("no sum", CodeUnreadable, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", BackupType)
		_, _ = io.WriteString(w, content)
	})
	f("not a backup", CodeUnreadable, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, content) })
	f("cut off", CodeCannotReach, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", BackupType)
		_, _ = io.WriteString(w, content)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	f("refused", CodeNoLeader, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, &Error{Status: 503, Code: CodeNoLeader, Message: "nobody leads"})
	})
	f("no leader is known", CodeNotLeader, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, &Error{Status: 409, Code: CodeNotLeader, Message: "does not lead"})
	})
	f("the leader's address makes no sense", CodeNotLeader, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, &Error{Status: 409, Code: CodeNotLeader, Message: "does not lead", Server: "http://a/"})
	})

	// What the caller cannot write is the caller's error.
	c := serveFunc(t, func(w http.ResponseWriter, _ *http.Request) { send(w, "9", sum) })
	full := errors.New("disk full")
	if _, err := c.Backup(t.Context(), writerFunc(func([]byte) (int, error) { return 0, full })); !errors.Is(err, full) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	hold := make(chan struct{})
	defer close(hold)
	c = serveFunc(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", BackupType)
		_, _ = io.WriteString(w, content)
		_ = http.NewResponseController(w).Flush()
		cancel(errors.New("nothing moved"))
		<-hold
	})
	if _, err := c.Backup(ctx, io.Discard); CodeOf(err) != CodeCannotReach || !strings.Contains(err.Error(), "nothing moved") {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestRestoreFindsTheLeader(t *testing.T) {
	const size = 64 << 20
	backup := bytes.NewReader(make([]byte, size))
	var got atomic.Int64
	leader := serveFunc(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		got.Add(n)
		_ = json.NewEncoder(w).Encode(Restored{Node: "a"})
	})
	follower := serveFunc(t, func(w http.ResponseWriter, r *http.Request) {
		refuse(w, &Error{Status: 409, Code: CodeNotLeader, Message: "does not lead", Server: leader.Server()})
	})
	var last atomic.Int64
	r, err := follower.Restore(t.Context(), backup, size, false, last.Store)
	if err != nil || r.Node != "a" || got.Load() != size || last.Load() != size {
		t.Errorf("%+v, %v: %d bytes came, told of %d", r, err, got.Load(), last.Load())
	}

	// Leaders that change, for ever.
	var hops atomic.Int64
	var a, b *Client
	to := func(c **Client) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			hops.Add(1)
			refuse(w, &Error{Status: 409, Code: CodeNotLeader, Message: "does not lead", Server: (*c).Server()})
		}
	}
	a, b = serveFunc(t, to(&b)), serveFunc(t, to(&a))
	if _, err := a.RemoveMember(t.Context(), "x"); CodeOf(err) != CodeNotLeader || hops.Load() != maxHops+1 {
		t.Errorf("%v after %d", err, hops.Load())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	cancel()
	if _, err := a.RemoveMember(ctx, "x"); err == nil {
		t.Error("with a context that is over")
	}
}
