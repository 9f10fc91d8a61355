package raftstore

import (
	"context"
	"io"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

const maxHelloString = 255

// A Store is this node's part of the group.
type Store struct {
	opts  Options
	fsm   *fsm
	clock *registry.Clock
}

func Open(o Options) (*Store, error)                               { panic("signature") }
func (s *Store) Bootstrap(voters []string) error                   { panic("signature") }
func (s *Store) Close(ctx context.Context) error                   { panic("signature") }
func (s *Store) TransferLeadership(ctx context.Context) error      { panic("signature") }
func (s *Store) Changed()                                          { panic("signature") }
func (s *Store) CaughtUp() (bool, string)                          { panic("signature") }
func (s *Store) Status() Status                                    { panic("signature") }
func (s *Store) Leads() bool                                       { panic("signature") }
func (s *Store) Backup(ctx context.Context, w io.Writer) error     { panic("signature") }
func (s *Store) RemoveServer(ctx context.Context, id string) error { panic("signature") }
func (s *Store) Restore(ctx context.Context, r io.Reader, force bool) error {
	panic("signature")
}
func (s *Store) ServeApply(ctx context.Context, from string, body []byte) ([]byte, error) {
	panic("signature")
}
func (s *Store) ServeState(ctx context.Context, from string, body []byte) ([]byte, error) {
	panic("signature")
}
func (s *Store) apply(ctx context.Context, cmd *pb.Command) (*pb.Result, error) {
	panic("signature")
}
