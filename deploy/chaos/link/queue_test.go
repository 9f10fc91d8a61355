package link

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func numbered(n, size int) []byte {
	p := make([]byte, size)
	binary.BigEndian.PutUint32(p, uint32(n))
	return p
}

type arrival struct {
	n  int
	at time.Time
}

// arrivals runs a queue and is what it delivered.
func arrivals(feed func(q *queue)) []arrival {
	var got []arrival
	q := newQueue(func(p []byte) {
		got = append(got, arrival{int(binary.BigEndian.Uint32(p)), time.Now()})
	})
	var running sync.WaitGroup
	running.Go(q.run)
	feed(q)
	synctest.Wait()
	q.end()
	running.Wait()
	return got
}

func TestQueueDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		got := arrivals(func(q *queue) {
			for n := range 50 {
				q.push(numbered(n, 100), Rule{Delay: 20 * time.Millisecond}, time.Now())
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second)
		})
		if len(got) != 50 {
			t.Fatalf("%d packets came out of 50", len(got))
		}
		for n, a := range got {
			want := start.Add(time.Duration(n)*time.Millisecond + 20*time.Millisecond)
			if a.n != n || !a.at.Equal(want) {
				t.Errorf("packet %d came as number %d, %v late", a.n, n, a.at.Sub(want))
			}
		}
	})
}

func TestQueueJitter(t *testing.T) {
	const delay, jitter = 10 * time.Millisecond, 40 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		got := arrivals(func(q *queue) {
			for n := range 10000 {
				q.push(numbered(n, 100), Rule{Delay: delay, Jitter: jitter}, time.Now())
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second)
		})
		if len(got) != 10000 {
			t.Fatalf("%d packets came out of 10000", len(got))
		}
		early, late := 0, 0
		for n, a := range got {
			took := a.at.Sub(start.Add(time.Duration(n) * time.Millisecond))
			if a.n != n || took < delay || took > delay+jitter {
				t.Fatalf("packet %d came as number %d after %v", a.n, n, took)
			}
			switch {
			case took < delay+jitter/4:
				early++
			case took > delay+jitter*3/4:
				late++
			}
		}
		// A dense stream must see both.
		if early < 500 || late < 500 {
			t.Errorf("of 10000 packets %d were hardly late and %d very", early, late)
		}
	})
}

func TestQueueRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, size = 1_000_000, 1000 // a packet takes 1 ms
		outcomes := map[outcome]int{}
		start := time.Now()
		got := arrivals(func(q *queue) {
			for n := range 1000 { // a burst: what the queue has room for …
				outcomes[q.push(numbered(n, size), Rule{Rate: rate}, time.Now())]++
			}
			time.Sleep(time.Second)
			for n := range 1000 { // … then as much as the link carries
				outcomes[q.push(numbered(1000+n, size), Rule{Rate: rate}, time.Now())]++
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second)
		})
		if want := 100 + 1000; outcomes[taken] != want || len(got) != want || outcomes[full] != 900 {
			t.Fatalf("%v, %d delivered, want %d", outcomes, len(got), want)
		}
		for i, a := range got[:100] {
			if want := start.Add(time.Duration(i+1) * time.Millisecond); a.n != i || !a.at.Equal(want) {
				t.Errorf("packet %d came as number %d, %v late", a.n, i, a.at.Sub(want))
			}
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		got := arrivals(func(q *queue) {
			for q.push(numbered(n, mtu), Rule{Delay: time.Hour}, time.Now()) == taken {
				n++
			}
		})
		if n*mtu > heldBytes || (n+2)*mtu < heldBytes || len(got) != n {
			t.Errorf("%d packets of %d bytes were taken, %d delivered at the end", n, mtu, len(got))
		}
	})
}

// TestPairKeepsOrder changes rules at random under traffic: what is not dropped
// arrives once, in order and whole.
func TestPairKeepsOrder(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	const size, total = 64, 20000
	p := &pair{from: &port{}, to: &port{tun: write}}
	got := make(chan []int)
	go func() {
		var numbers []int
		buf := make([]byte, size)
		for {
			if n, err := read.Read(buf); err != nil || n != size {
				got <- numbers
				return
			}
			numbers = append(numbers, int(binary.BigEndian.Uint32(buf)))
		}
	}()
	var goroutines sync.WaitGroup
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changes := 0
	changing.Go(func() {
		rules := []Rule{
			{}, {Delay: time.Millisecond}, {Delay: 300 * time.Microsecond, Jitter: time.Millisecond},
			{Loss: 0.1}, {Rate: 5_000_000}, {}, {Cut: true}, {Loss: 0.1, Delay: 2 * time.Millisecond, Rate: 50_000_000},
		}
		for {
			select {
			case <-stop:
				p.set(Rule{}, &goroutines)
				return
			default:
				p.set(rules[rand.N(len(rules))], &goroutines)
				changes++
				time.Sleep(rand.N(2 * time.Millisecond))
			}
		}
	})
	for n := range total {
		p.send(numbered(n, size))
		if n%20 == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	close(stop)
	changing.Wait()
	goroutines.Wait()
	write.Close()
	numbers := <-got
	for i := range numbers[1:] {
		if numbers[i] >= numbers[i+1] {
			t.Fatalf("packet %d came after %d", numbers[i+1], numbers[i])
		}
	}
	c := p.count()
	if sum := c.Passed + c.Cut + c.Lost + c.Full + c.Failed; sum != total || c.Passed != uint64(len(numbers)) || c.Failed != 0 {
		t.Errorf("%d packets sent, %d arrived, counted are %+v", total, len(numbers), c)
	}
	if c.Cut == 0 || c.Lost == 0 || c.Delayed == 0 || changes < 50 {
		t.Errorf("after %d changes counted are only %+v", changes, c)
	}
	if p.queue.Load() != nil || p.rule.Load() != nil {
		t.Error("a queue or a rule was left")
	}
}

func FuzzForward(f *testing.F) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		f.Fatal(err)
	}
	defer null.Close()
	prefix := [3]byte{10, 200, 7}
	good := append([]byte{0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 200, 7, 11}, 10, 200, 7, 12)
	f.Add(good)
	f.Add(good[:19])
	f.Add(append(good, make([]byte, mtu)...))
	f.Add(append([]byte{0x65}, good[1:]...))
	f.Add([]byte{})
	f.Add([]byte{0x60, 0, 0, 0, 0, 0, 59, 64, 31: 0, 39: 2})
	f.Fuzz(func(t *testing.T, packet []byte) {
		a, b := &port{last: 11}, &port{last: 12, tun: null}
		p := &pair{from: a, to: b}
		a.to[12].Store(p)
		a.forward(packet, prefix)
		// All that counts is what IPv4 has in these bytes.
		want := uint64(0)
		if n := len(packet); n >= 20 && n <= mtu && packet[0]>>4 == 4 && string(packet[16:20]) == string(good[16:20]) {
			want = 1
		}
		if got := p.count().Passed; got != want {
			t.Errorf("%d packets passed, want %d", got, want)
		}
	})
}
