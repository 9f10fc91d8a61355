package raftstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// A tightPipeline has no room, as the library's with two requests under way.
type tightPipeline struct {
	sent chan raft.AppendFuture
	done chan raft.AppendFuture
	shut chan struct{}
}

func (p *tightPipeline) AppendEntries(req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	f := appended{req, resp}
	select {
	case p.sent <- f:
		return f, nil
	case <-p.shut:
		return nil, raft.ErrPipelineShutdown
	}
}

func (p *tightPipeline) Consumer() <-chan raft.AppendFuture { return p.done }

func (p *tightPipeline) Close() error {
	select {
	case <-p.shut:
	default:
		close(p.shut)
	}
	return nil
}

type appended struct {
	req  *raft.AppendEntriesRequest
	resp *raft.AppendEntriesResponse
}

func (appended) Error() error                            { return nil }
func (appended) Start() time.Time                        { return time.Time{} }
func (a appended) Request() *raft.AppendEntriesRequest   { return a.req }
func (a appended) Response() *raft.AppendEntriesResponse { return a.resp }

// Nobody reads answers behind one that is no success, and one more request must
// not wait for that.
func TestPipelineAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tight := &tightPipeline{make(chan raft.AppendFuture), make(chan raft.AppendFuture), make(chan struct{})}
		p := &pipeline{told: &telling{}, AppendPipeline: tight, answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
		go p.pass()
		send := func(success bool) {
			go func() { tight.done <- <-tight.sent }()
			if _, err := p.AppendEntries(new(raft.AppendEntriesRequest), &raft.AppendEntriesResponse{Success: success}); err != nil {
				t.Error(err)
			}
			if f := <-p.Consumer(); f.Response().Success != success {
				t.Error("another answer")
			}
		}
		send(true)
		send(true)
		send(false)
		ended := make(chan error)
		go func() {
			_, err := p.AppendEntries(new(raft.AppendEntriesRequest), new(raft.AppendEntriesResponse))
			ended <- err
		}()
		select {
		case err := <-ended:
			if err != raft.ErrPipelineShutdown {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("it still waits")
			_ = tight.Close()
			<-ended
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}
