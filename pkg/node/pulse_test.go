package node

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever asks after a stall waits until it is handled, and it is handled once.
func TestPulseNoticesAStallBeforeAnybodyActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var stalls []time.Duration
		handled := false
		frozen := make(chan struct{})
		close(frozen)
		p := newPulse(func() { mu.Lock(); f := frozen; mu.Unlock(); <-f }, func(d time.Duration) {
			mu.Lock()
			stalls, handled = append(stalls, d), true
			mu.Unlock()
		})
		p.begin()
		wait := sync.WaitGroup{}
		stop := make(chan struct{})
		wait.Go(func() { // what run does, but it can be ended
			for {
				select {
				case <-stop:
					return
				case <-time.After(pulseEvery):
					p.awake()
				}
			}
		})
		time.Sleep(time.Minute)
		p.awake()
		if len(stalls) != 0 || p.stalledWithin(time.Hour) {
			t.Fatalf("a stall without a stall: %v", stalls)
		}
		mu.Lock()
		frozen = make(chan struct{})
		mu.Unlock()
		for range 10 {
			wait.Go(func() {
				p.awake()
				mu.Lock()
				defer mu.Unlock()
				if !handled {
					t.Error("acts before the stall is handled")
				}
			})
		}
		time.Sleep(8 * time.Second)
		mu.Lock()
		close(frozen)
		mu.Unlock()
		synctest.Wait()
		if len(stalls) != 1 || stalls[0] < 7*time.Second || stalls[0] > 9*time.Second {
			t.Errorf("stalls %v, want one of about 8 s", stalls)
		}
		if !p.stalledWithin(time.Second) {
			t.Error("forgotten at once")
		}
		time.Sleep(11 * time.Second)
		if p.stalledWithin(10 * time.Second) {
			t.Error("remembered for ever")
		}
		close(stop)
		wait.Wait()
	})
}

// Short delays are a busy machine, not a stall.
func TestPulseForgivesDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPulse(nil, func(d time.Duration) { t.Errorf("stall of %v", d) })
		time.Sleep(time.Minute) // to start, what asks meanwhile asks in vain
		p.awake()
		p.begin()
		for range 5 {
			time.Sleep(2 * time.Second)
			p.awake()
		}
	})
}
