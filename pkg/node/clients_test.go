package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/cluster"
	starlingv1 "github.com/starling-registry/starling/proto"
)

func TestAnswersAreBounded(t *testing.T) {
	var many listing
	for range maxSubscribers {
		if !many.add(&starlingv1.Subscriber{}) {
			t.Fatal("no room")
		}
	}
	if many.Truncated || many.add(&starlingv1.Subscriber{}) || !many.Truncated || len(many.Subscribers) != maxSubscribers {
		t.Errorf("%d subscribers", len(many.Subscribers))
	}
	var big listing
	for big.add(&starlingv1.Subscriber{Agent: strings.Repeat("x", 1000)}) {
	}
	if size := proto.Size(&big.SubscribersResponse); !big.Truncated || size > maxSubscribersBytes || size < maxSubscribersBytes*9/10 {
		t.Errorf("%d bytes", size)
	}
}

func TestWhyNot(t *testing.T) {
	old := status.Error(codes.Unimplemented, "unknown method Subscribers")
	for _, f := range []struct {
		state cluster.State
		err   error
		want  string
	}{
		{cluster.Alive, old, "it is of an older release, which does not tell"},
		{cluster.Alive, fmt.Errorf("ask: %w", old), "it is of an older release, which does not tell"},
		{cluster.Alive, errors.New("x"), "x"},
		{cluster.Alive, status.Error(codes.DeadlineExceeded, "x"), "no answer in time"},
		{cluster.Alive, status.Error(codes.Canceled, "x"), "the connection to it has ended"},
		{cluster.Silent, errors.New("x"), "it is silent: paused, cut off or powered off"},
		{cluster.Refused, errors.New("x"), "its ports refuse, the process is gone"},
	} {
		if got := whyNot(cluster.Member{State: f.state}, f.err); got != f.want {
			t.Errorf("%v: %q", f, got)
		}
	}
}
