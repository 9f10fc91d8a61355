package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Raft tells the state of the log as the node sees it.
func (c *Client) Raft(ctx context.Context) (*Raft, error) { return get[Raft](ctx, c, "/raft", nil) }

// RemoveMember takes a member out of the log. The leader is asked, whichever
// node the client is of.
func (c *Client) RemoveMember(ctx context.Context, id string) (*Removed, error) {
	return atLeader(ctx, c, func(c *Client) (*Removed, error) {
		return post[Removed](ctx, c, "/members/remove", RemoveRequest{ID: id})
	})
}

// Backup writes the tables of the leader to w, whichever node the client is of.
// Nothing was written if the error has a code other than CodeUnreadable and
// CodeCannotReach; after these what was written is to be thrown away.
func (c *Client) Backup(ctx context.Context, w io.Writer) (*Backup, error) {
	return atLeader(ctx, c, func(c *Client) (*Backup, error) { return c.backup(ctx, w) })
}

func (c *Client) backup(ctx context.Context, w io.Writer) (*Backup, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url("/backup", nil), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return nil, c.unreachable(ctx, err)
		}
		return nil, c.refusal(resp.StatusCode, b)
	}
	if resp.Header.Get("Content-Type") != BackupType {
		return nil, &Error{Status: resp.StatusCode, Code: CodeUnreadable, Message: c.server + " answers with something that is no backup",
			Hint: "is it the HTTP port of a Starling node, of a release like this one?"}
	}
	sum := sha256.New()
	out := &failing{w: w}
	n, err := io.Copy(io.MultiWriter(out, sum), resp.Body)
	switch {
	case out.err != nil:
		return nil, out.err // the caller's own
	case err != nil && ctx.Err() == nil:
		return nil, &Error{Code: CodeCannotReach, Message: fmt.Sprintf("the backup of %s ended after %d bytes: %v", c.server, n, err),
			Hint: "its log has the reason, or starling raft"}
	case err != nil:
		return nil, c.unreachable(ctx, err)
	}
	// Something between that closes properly after half of it must not make
	// a backup of that.
	b := &Backup{Node: resp.Header.Get(HeaderNode), Server: c.server, Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}
	if bytes, sent := resp.Trailer.Get(HeaderBytes), resp.Trailer.Get(HeaderSHA256); bytes != strconv.FormatInt(n, 10) || sent != b.SHA256 {
		return nil, &Error{Status: resp.StatusCode, Code: CodeUnreadable, Message: fmt.Sprintf("the backup of %s is not whole: %d bytes came", c.server, n),
			Hint: "ask the node itself, without a proxy"}
	}
	return b, nil
}

// Restore gives the cluster what a backup of that size holds; the leader is
// asked, whichever node the client is of. Without force it is refused if the
// cluster holds anything. Sent is told how many bytes have gone, from any
// goroutine; nil: nobody wants to know.
func (c *Client) Restore(ctx context.Context, backup io.ReaderAt, size int64, force bool, sent func(int64)) (*Restored, error) {
	return atLeader(ctx, c, func(c *Client) (*Restored, error) {
		q := url.Values{}
		if force {
			q.Set("force", "true")
		}
		// The transport closes the body when it is done with it; that of a
		// ReaderAt is the caller's to close.
		body := io.NopCloser(&counting{r: io.NewSectionReader(backup, 0, size), told: sent})
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url("/restore", q), body)
		if err != nil {
			return nil, err
		}
		r.ContentLength = size
		r.Header.Set("Content-Type", BackupType)
		// A node that does not lead says so before all of it is sent.
		r.Header.Set("Expect", "100-continue")
		return send[Restored](c, r)
	})
}

// maxHops bounds how often a leader is looked for: it may change meanwhile.
const maxHops = 3

// atLeader asks the node of c, and the one that this names if it does not lead.
func atLeader[T any](ctx context.Context, c *Client, ask func(*Client) (*T, error)) (*T, error) {
	for hop := 0; ; hop++ {
		answer, err := ask(c)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != CodeNotLeader || e.Server == "" || e.Server == c.server || hop == maxHops || ctx.Err() != nil {
			return answer, err
		}
		leader, bad := NewClient(e.Server)
		if bad != nil {
			return answer, err
		}
		leader.http = c.http
		c = leader
	}
}

// A failing writer keeps its error, to tell it from that of the reader.
type failing struct {
	w   io.Writer
	err error
}

func (f *failing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil {
		f.err = err
	}
	return n, err
}

// A counting reader tells how much was read of it.
type counting struct {
	r    io.Reader
	n    int64
	told func(int64)
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if c.n += int64(n); n > 0 && c.told != nil {
		c.told(c.n)
	}
	return n, err
}
