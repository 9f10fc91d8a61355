package raftstore

import (
	"errors"
	"fmt"

	pb "github.com/starling-registry/starling/proto"
)

// Why a write did not happen, for errors.Is.
var (
	// ErrNoLeader: nothing was written, nor will it be.
	ErrNoLeader = errors.New("there is no leader")
	// ErrUnknownOutcome: it may have been written, or may be yet.
	ErrUnknownOutcome = errors.New("it is not known whether it was written")

	// The others are of a [Refused].
	ErrExists        = errors.New("it exists already")
	ErrNotFound      = errors.New("it was not found")
	ErrNotEmpty      = errors.New("it is not empty")
	ErrWrongKind     = errors.New("the service is of the other kind")
	ErrInvalid       = errors.New("it is not valid")
	ErrNotUnderstood = errors.New("not every node understands it")
)

// A Refused is a command that was carried out and changed nothing.
type Refused struct {
	Code pb.Result_Code
	Text string // for people
}

func (r *Refused) Error() string {
	if r.Text == "" {
		return r.Unwrap().Error()
	}
	return r.Text
}

// Unwrap is the error that the code stands for.
func (r *Refused) Unwrap() error {
	switch r.Code {
	case pb.Result_NOT_UNDERSTOOD:
		return ErrNotUnderstood
	case pb.Result_INVALID:
		return ErrInvalid
	case pb.Result_EXISTS:
		return ErrExists
	case pb.Result_NOT_FOUND:
		return ErrNotFound
	case pb.Result_NOT_EMPTY:
		return ErrNotEmpty
	case pb.Result_WRONG_KIND:
		return ErrWrongKind
	}
	return fmt.Errorf("result %v", r.Code) // of a newer release
}

// refusal is nil if a command was done.
func refusal(r *pb.Result) error {
	if r.GetCode() == pb.Result_DONE {
		return nil
	}
	return &Refused{Code: r.GetCode(), Text: r.GetText()}
}
