package client

import (
	"errors"
	"testing"
	"time"
)

// Subscribe, first list, register, push, event, and back again (S002-3, S003-10).
func TestFirstLight(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		defer c.Close()
		ready(t, c)
		w, err := c.Watch(t.Context(), "order")
		if err != nil {
			t.Fatal(err)
		}
		wantEvent(t, w, "first [] +[] -[] ~[]")
		l, err := c.Register(t.Context(), "order", Registration{IP: "1.1.1.1", Port: 80})
		if err != nil {
			t.Fatal(err)
		}
		wantEvent(t, w, "[1.1.1.1] +[1.1.1.1] -[] ~[]")
		if err := l.Deregister(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantEvent(t, w, "[] +[] -[1.1.1.1] ~[]")
		if n := len(f.hosts(order)); n != 0 {
			t.Errorf("%d instances", n)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := w.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		time.Sleep(time.Second)
	})
}
