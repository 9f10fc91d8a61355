package httpapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

// listening serves a fixture on a socket: what an answer's end looks like is
// not seen without.
func listening(t *testing.T, f *fixture) *api.Client {
	t.Helper()
	srv := httptest.NewServer(http.Handler(f))
	t.Cleanup(srv.Close)
	c, err := api.NewClient(strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestBackup(t *testing.T) {
	type outcome struct {
		content string
		err     error
	}
	large := strings.Repeat("row ", 1<<20)
	for name, o := range map[string]outcome{
		"small":              {"some rows", nil},
		"large":              {large, nil},
		"fails at once":      {"", &api.Error{Status: 503, Code: api.CodeNoLeader, Message: "nobody leads", Hint: "wait"}},
		"of another":         {"", &api.Error{Status: 409, Code: api.CodeNotLeader, Message: "b2 leads", Hint: "ask it"}},
		"fails":              {"", errors.New("a secret")},
		"fails in the end":   {"some rows", errors.New("leadership lost")},
		"fails half through": {large, errors.New("leadership lost")},
	} {
		n := fakeNative(new([]string))
		n.Backup = func(_ context.Context, w io.Writer) error {
			for part := range strings.SplitAfterSeq(o.content, " row ") {
				if _, err := io.WriteString(w, part); err != nil {
					t.Error(err)
				}
			}
			return o.err
		}
		f := newFixture(t, func(o *Options) { o.Native = n })
		f.reason = "it waits for a leader" // that must not keep anybody from saving what there is
		var w bytes.Buffer
		b, err := listening(t, f).Backup(t.Context(), &w)
		switch refusal, _ := errors.AsType[*api.Error](o.err); {
		case o.err == nil:
			if err != nil || w.String() != o.content || b.Node != "a1" || b.Bytes != int64(len(o.content)) {
				t.Errorf("%s: %+v, %v, %d bytes", name, b, err, w.Len())
			}
		case refusal != nil:
			if api.CodeOf(err) != refusal.Code || err.Error() != refusal.Error() {
				t.Errorf("%s: %v", name, err)
			}
		case o.content == "":
			if api.CodeOf(err) != api.CodeInternal || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v", name, err)
			}
		default:
			if api.CodeOf(err) != api.CodeCannotReach || f.logs.FilterMessage("a backup was not sent to its end").Len() != 1 {
				t.Errorf("%s: %v, %v", name, err, f.logs.All())
			}
		}
	}
}

// The leader's address comes through, where there is one.
func TestNotLeader(t *testing.T) {
	n := fakeNative(new([]string))
	n.RemoveMember = func(context.Context, string) (api.Removed, error) {
		return api.Removed{}, &api.Error{Status: 409, Code: api.CodeNotLeader, Message: "b2 leads", Hint: "ask it", Server: "127.0.0.1:1"}
	}
	f := newFixture(t, func(o *Options) { o.Native = n })
	w, code, _ := f.native(t, "POST /members/remove", `{"id":"b2"}`, nativeJSON)
	if w.Code != 409 || code != api.CodeNotLeader || !strings.Contains(w.Body.String(), `,"server":"127.0.0.1:1"}}`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if _, err := listening(t, f).RemoveMember(t.Context(), "b2"); api.CodeOf(err) != api.CodeCannotReach || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("the client does not go there: %v", err)
	}
}

func TestRestore(t *testing.T) {
	var done []string
	n := fakeNative(&done)
	n.RestoreLimit = 1000
	f := newFixture(t, func(o *Options) { o.Native = n })
	const octets = "Content-Type: " + api.BackupType
	post := func(query, body string, status int, code string, headers ...string) {
		t.Helper()
		w, is, message := f.native(t, "POST /restore"+query, body, headers...)
		if w.Code != status || is != code {
			t.Errorf("%s %v: %d %s %s, want %d %s", query, headers, w.Code, is, message, status, code)
		}
	}
	post("", "rows", 415, api.CodeContentType)
	post("", "rows", 415, api.CodeContentType, nativeJSON)
	post("", "rows", 415, api.CodeContentType, "Content-Type: text/plain")
	post("?force=true", "rows", 403, api.CodeForbidden, octets, "Sec-Fetch-Site: cross-site")
	post("?force=true", "rows", 403, api.CodeForbidden, octets, "Origin: http://evil.example")
	post("?force=1", "rows", 400, api.CodeBadRequest, octets)
	post("?force=", "rows", 400, api.CodeBadRequest, octets)
	post("?forced=true", "rows", 400, api.CodeBadRequest, octets)
	post("", strings.Repeat("x", 1001), 413, api.CodeTooLarge, octets)
	c := listening(t, f)
	// Its size is not said beforehand.
	r := httptest.NewRequest("POST", "http://"+c.Server()+"/starling/v1/restore", io.LimitReader(endless{}, 1001))
	r.RequestURI = ""
	r.Header.Set("Content-Type", api.BackupType)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	if resp.Body.Close(); resp.StatusCode != 413 || !strings.Contains(string(b), "1000 bytes") {
		t.Errorf("%d %s", resp.StatusCode, b)
	}
	if len(done) > 0 {
		t.Fatalf("done: %v", done)
	}
	post("", "rows", 200, "", octets)
	post("?force=false", "rows", 200, "", octets)
	post("?force=true", "rows", 200, "", octets, "Sec-Fetch-Site: same-origin")
	if a, err := c.Restore(t.Context(), strings.NewReader(strings.Repeat("x", 1000)), 1000, true, nil); err != nil || a.Applied != 7 {
		t.Error(a, err)
	}
	if got := strings.Join(done, ", "); got != "restore 4 false, restore 4 false, restore 4 true, restore 1000 true" {
		t.Errorf("done: %s", got)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// One restore at a time; a backup may be made meanwhile.
func TestRestoreIsAlone(t *testing.T) {
	n := fakeNative(new([]string))
	under, end := make(chan struct{}), make(chan struct{})
	n.Restore = func(context.Context, io.Reader, bool) (api.Restored, error) {
		close(under)
		<-end
		return api.Restored{}, nil
	}
	f := newFixture(t, func(o *Options) { o.Native = n })
	c := listening(t, f)
	first := make(chan error, 1)
	go func() {
		_, err := c.Restore(t.Context(), strings.NewReader("rows"), 4, false, nil)
		first <- err
	}()
	<-under
	if _, err := c.Restore(t.Context(), strings.NewReader("rows"), 4, false, nil); api.CodeOf(err) != api.CodeConflict {
		t.Error(err)
	}
	if _, err := c.Backup(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
	close(end)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestBackupsAreBounded(t *testing.T) {
	n := fakeNative(new([]string))
	under, end := make(chan struct{}), make(chan struct{})
	n.Backup = func(_ context.Context, w io.Writer) error {
		under <- struct{}{}
		<-end
		_, err := io.WriteString(w, "rows")
		return err
	}
	c := listening(t, newFixture(t, func(o *Options) { o.Native = n }))
	all := make(chan error, maxBackups)
	for range maxBackups {
		go func() {
			_, err := c.Backup(t.Context(), io.Discard)
			all <- err
		}()
		<-under
	}
	if _, err := c.Backup(t.Context(), io.Discard); api.CodeOf(err) != api.CodeConflict {
		t.Error(err)
	}
	close(end)
	for range maxBackups {
		if err := <-all; err != nil {
			t.Error(err)
		}
	}
	go func() { <-under }()
	if _, err := c.Backup(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
}

// The time-outs of the server are for whole requests; a backup may take longer
// in both directions, as long as it moves.
func TestTransfersOutliveTheTimeouts(t *testing.T) {
	n := fakeNative(new([]string))
	pause := make(chan struct{})
	n.Backup = func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, "some ")
		<-pause
		if err == nil {
			_, err = io.WriteString(w, "rows")
		}
		return err
	}
	n.Restore = func(ctx context.Context, backup io.Reader, _ bool) (api.Restored, error) {
		half := make([]byte, 4)
		if _, err := io.ReadFull(backup, half); err != nil {
			return api.Restored{}, err
		}
		<-pause
		rest, err := io.ReadAll(backup)
		<-pause
		if err == nil {
			err = ctx.Err() // the client is still there
		}
		return api.Restored{Applied: uint64(4 + len(rest))}, err
	}
	f := newFixture(t, func(o *Options) { o.Native = n })
	srv := httptest.NewUnstartedServer(http.Handler(f))
	srv.Config.ReadTimeout, srv.Config.WriteTimeout = 50*time.Millisecond, 50*time.Millisecond
	srv.Start()
	defer srv.Close()
	c, err := api.NewClient(strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	wait := func() { time.Sleep(120 * time.Millisecond); pause <- struct{}{} }
	go wait()
	if b, err := c.Backup(t.Context(), io.Discard); err != nil || b.Bytes != 9 {
		t.Error(b, err)
	}
	go func() { wait(); wait() }()
	// More than what the sockets hold, so that it is read in between.
	const size = 8 << 20
	if r, err := c.Restore(t.Context(), bytes.NewReader(make([]byte, size)), size, false, nil); err != nil || r.Applied != size {
		t.Error(r, err)
	}
}

func TestRemoveMember(t *testing.T) {
	var done []string
	f := newFixture(t, func(o *Options) { o.Native = fakeNative(&done) })
	post := func(body string, status int, code string, headers ...string) {
		t.Helper()
		w, is, message := f.native(t, "POST /members/remove", body, append(headers, nativeJSON)...)
		if w.Code != status || is != code {
			t.Errorf("%s %v: %d %s %s, want %d %s", body, headers, w.Code, is, message, status, code)
		}
	}
	post(`{"id":"b2"}`, 403, api.CodeForbidden, "Sec-Fetch-Site: cross-site")
	for _, body := range []string{"", "{}", `{"id":""}`, `{"id":" "}`, `{"ID":1}`, `{"id":"b2","force":true}`, `["b2"]`} {
		post(body, 400, api.CodeBadRequest)
	}
	post(`{"id":"a1"}`, 409, api.CodeConflict) // it is the node itself
	post(`{"id":"none"}`, 404, api.CodeNotFound)
	if len(done) > 0 {
		t.Fatalf("done: %v", done)
	}
	post(`{"id":"b2"}`, 200, "") // silent
	post(`{"id":"c3"}`, 200, "") // no member any more
	if got := strings.Join(done, ", "); got != "remove b2, remove c3" {
		t.Errorf("done: %s", got)
	}
}
