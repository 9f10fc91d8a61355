package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/api"
)

// transferPause is how long a backup, in either direction, may stand still. The
// time-outs of the server are for whole requests, and too short for it.
const transferPause = 30 * time.Second

// maxBackups are under way at one time: each keeps what the tables were when it
// began, and puts an entry into the log.
const maxBackups = 8

// backup sends the tables of the log. Their size is not known before they are
// made, so what tells a whole backup from the beginning of one comes at its
// end.
func (s *Server) backup(w http.ResponseWriter, r *http.Request) error {
	n := &s.opts.Native
	if r.Method == http.MethodHead {
		w.Header().Set("Allow", http.MethodGet)
		return errBackupHead
	}
	if _, err := query(r); err != nil {
		return err
	}
	select {
	case s.backups <- struct{}{}:
		defer func() { <-s.backups }()
	default:
		return errBackups
	}
	out := &transfer{w: w, control: http.NewResponseController(w), sum: sha256.New()}
	h := w.Header()
	out.begin = sync.OnceFunc(func() {
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Type", api.BackupType)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Disposition", `attachment; filename="starling.backup"`)
		h.Set(api.HeaderNode, n.Raft().Node)
		h.Set("Trailer", api.HeaderBytes+", "+api.HeaderSHA256)
	})
	err := n.Backup(r.Context(), out)
	switch {
	case err != nil && out.bytes == 0:
		return nativeError(err)
	case err != nil:
		s.log.Warn("a backup was not sent to its end", zap.String("peer", r.RemoteAddr), zap.Int64("bytes", out.bytes), zap.Error(err))
		panic(http.ErrAbortHandler) // the client must not take it for whole
	}
	out.begin() // nothing was written: an empty backup, which no reader takes
	h.Set(api.HeaderBytes, strconv.FormatInt(out.bytes, 10))
	h.Set(api.HeaderSHA256, hex.EncodeToString(out.sum.Sum(nil)))
	s.log.Info("a backup was sent", zap.String("peer", r.RemoteAddr), zap.Int64("bytes", out.bytes))
	return nil
}

// A transfer is the body of an answer that takes as long as it takes, while
// the client reads.
type transfer struct {
	w       io.Writer
	control *http.ResponseController
	begin   func() // before the first byte
	sum     hash.Hash
	bytes   int64
}

func (t *transfer) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	t.begin()
	_ = t.control.SetWriteDeadline(time.Now().Add(transferPause)) // not all writers of tests have one
	n, err := t.w.Write(b)
	t.bytes += int64(n)
	t.sum.Write(b[:n])
	return n, err
}

// restorer makes the handler of POST /restore. It takes one at a time: each may
// need as much memory again as the tables have.
func (s *Server) restorer() handler {
	var busy sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) error {
		n := &s.opts.Native
		if err := s.checkWrite(r, api.BackupType); err != nil {
			return err
		}
		q, err := query(r, "force")
		if err != nil {
			return err
		}
		force := q["force"] == "true"
		if _, given := q["force"]; given && !force && q["force"] != "false" {
			return errNative("force is neither true nor false: "+clip(q["force"]), "without it nothing is overwritten")
		}
		limit := n.RestoreLimit
		if r.ContentLength > limit {
			return errBackupTooLarge(limit)
		}
		if !busy.TryLock() {
			return errRestoring
		}
		defer busy.Unlock()
		control := http.NewResponseController(w)
		s.log.Warn("a backup is to be restored", zap.String("peer", r.RemoteAddr), zap.Bool("force", force), zap.Int64("bytes", r.ContentLength))
		restored, err := n.Restore(r.Context(), &upload{r: http.MaxBytesReader(nil, r.Body, limit), control: control}, force)
		_ = control.SetWriteDeadline(time.Now().Add(transferPause)) // not all writers of tests have one
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return errBackupTooLarge(limit)
		}
		if err != nil {
			s.log.Warn("a backup was not restored", zap.String("peer", r.RemoteAddr), zap.Error(err))
			return nativeError(err)
		}
		return writeNative(w, restored)
	}
}

// An upload is the body of a request that takes as long as it takes, while the
// client sends.
type upload struct {
	r       io.Reader
	control *http.ResponseController
	ended   bool
}

func (u *upload) Read(b []byte) (int, error) {
	// Behind the end the server itself reads, to see the client go, and a
	// deadline would look like that.
	if !u.ended {
		_ = u.control.SetReadDeadline(time.Now().Add(transferPause))
	}
	n, err := u.r.Read(b)
	u.ended = u.ended || err != nil
	return n, err
}

// removeMember takes a node out of the log. One that is alive would come back
// at once, as a new one does.
func (s *Server) removeMember(r *http.Request) (any, error) {
	var in api.RemoveRequest
	if err := s.readBody(r, &in); err != nil {
		return nil, err
	}
	if strings.TrimSpace(in.ID) == "" {
		return nil, errNative(`"id" is missing`, "starling members shows the ids")
	}
	n := &s.opts.Native
	for _, m := range n.Members().Members {
		if m.ID == in.ID && (m.Self || m.State == api.StateAlive) {
			return nil, errStillAlive(m.Name)
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), removeTimeout)
	defer cancel()
	removed, err := n.RemoveMember(ctx, in.ID)
	if err == nil {
		s.log.Warn("a member is removed by an operator", zap.String("peer", r.RemoteAddr), zap.String("member", in.ID))
	}
	return removed, err
}
