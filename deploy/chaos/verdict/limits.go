package verdict

// Limits are the bounds that a server documents, in milliseconds. What is
// excused, and for how long the dead may be seen, follows from them and from
// nothing else. [Documented] has those of docs/cluster.md ("What happens when",
// "What remains"); a wider one here is a fault of the verdict.
type Limits struct {
	// Lease: what was on a node that fell silent is kept for at least so long.
	// It is 22.5 s and 2.5 s of detection after the last sign of life, which is
	// up to 5 s older than the silence where only gossip told of it.
	Lease Millis `json:"lease"`
	// LeaseGone: by then the dead among it are gone: "25 s after its last sign of
	// life".
	LeaseGone Millis `json:"leaseGone"`
	// Refused and RefusedGone are the same of a node whose process is gone: its
	// clients were reset, too. "11 s after its last sign of life".
	Refused     Millis `json:"refused"`
	RefusedGone Millis `json:"refusedGone"`
	// Patience is added to the time that an SDK takes to repeat its registrations
	// where that is longer than a lease: "clients on Python ≥ 3 35 s (they look
	// after their registrations every 30 s)". PatienceGone is when such dead ones
	// are gone, at a silent node: detection and what is told once a second come on
	// top. 0: the server knows nothing of it.
	Patience     Millis `json:"patience"`
	PatienceGone Millis `json:"patienceGone"`
	// Hold: no lease ends before that of a silent node, for so long in all.
	Hold Millis `json:"hold"`
	// Dialled: what is on a silent node and answers is kept for so long in all.
	Dialled Millis `json:"dialled"`
	// Preserved: where more nodes are silent than leave a majority no lease runs
	// for so long; of those counts who was alive for Stable.
	Preserved Millis `json:"preserved"`
	Stable    Millis `json:"stable"`
	// Restart: "all nodes restart: the old list, as of the last snapshot, for
	// 30 s". Snapshot is how old that may be, SnapshotAge when it is too old.
	Restart     Millis `json:"restart"`
	Snapshot    Millis `json:"snapshot"`
	SnapshotAge Millis `json:"snapshotAge"`
	// Moment: what was said so shortly before a node was killed, nobody else may
	// know: "the last milliseconds".
	Moment Millis `json:"moment"`
	// Equal: "equal within 2 s after it heals".
	Equal Millis `json:"equal"`
	// Reset: a connection that is reset takes what it registered with it at once;
	// so long until everybody has heard. A deregistration, and the news of a
	// registration, take no longer.
	Reset Millis `json:"reset"`
	// Moving: "while a node is silent, drains, or the lease of one that is gone
	// runs, a provider that loses its connection stays for 10 s more"; also "a
	// half-open connection on a node that stalls and returns". Whether it is over
	// is looked at once a second.
	Moving Millis `json:"moving"`
	// NoticeFrom and NoticeWithin: "a client whose own path to its node is cut
	// notices late (5 to 20 s), and its node even later (up to 28 s)". Notices are
	// those of SDKs that are known to be quicker.
	NoticeFrom   Millis            `json:"noticeFrom"`
	NoticeWithin Millis            `json:"noticeWithin"`
	Notices      map[string]Millis `json:"notices"`
	NodeNotices  Millis            `json:"nodeNotices"`
	// Connect: an SDK that has lost its node is connected to another one so long
	// later, and Timeout more for each that does not answer.
	// Backoff comes on top where it had to wait for one.
	Connect Millis `json:"connect"`
	Timeout Millis `json:"timeout"`
	Backoff Millis `json:"backoff"`
	// Beat is the period of beats; BeatLate is without a beat for so long, that a
	// list does not name the instance as healthy any more: 15 s, looked at each 5.
	Beat     Millis `json:"beat"`
	BeatFrom Millis `json:"beatFrom"` // the same at the earliest, since the last could have gone out
	BeatLate Millis `json:"beatLate"`
	// BeatHold: "an HTTP client whose beats stop while a node is silent may be
	// beating at that one": it is dialled, which is known at the next look, and for
	// 10 s after the node is back nobody is called dead.
	BeatHold Millis `json:"beatHold"`
	// Loss and RoundTrip: a connection with that much loss (of a packet and its
	// answer) or delay cannot live, and counts as cut. An SDK asks its node each
	// 5 s whether it is there and waits 3 s, time for four tries of TCP. At 0.3,
	// which is 16 % each way, 0.8 % of the questions stay without an answer: a
	// connection lives ten minutes.
	Loss      float64 `json:"loss"`
	RoundTrip Millis  `json:"roundTrip"`
	// Slack is for what doing and watching takes.
	Slack Millis `json:"slack"`
}

// What no server promises, but TCP and HTTP make of faults.
const (
	// breather is the time in which a connection that was stuck goes on for sure.
	breather Millis = 3_000
	// retransmissions of what is lost: three of TCP (0.2, 0.4, 0.8 s), twice.
	retransmissions Millis = 2_800
	// longList is the bytes of a list with some hundred instances.
	longList = 64 << 10
	// unknownFor is how long after its error a write may still be carried out: a
	// request over HTTP is tried for 10 s, wherever it has been handed on to.
	unknownFor Millis = 10_000
)

// Documented is what Starling promises with its default settings.
func Documented() Limits {
	return Limits{
		Lease: 20_000, LeaseGone: 25_000,
		Refused: 10_000, RefusedGone: 11_000,
		Patience: 5_000, PatienceGone: 10_000,
		Hold: 60_000, Dialled: 180_000, Preserved: 180_000, Stable: 60_000,
		Restart: 30_000, Snapshot: 10_000, SnapshotAge: 300_000,
		Moment: 200, Equal: 2_000, Reset: 1_000, Moving: 11_000,
		NoticeFrom: 5_000, NoticeWithin: 20_500, Notices: map[string]Millis{"go": 8_500, "python": 8_500}, NodeNotices: 28_000,
		Connect: 3_000, Timeout: 3_000, Backoff: 5_000,
		Beat: 5_000, BeatFrom: 10_000, BeatLate: 20_000, BeatHold: 15_000,
		Loss: 0.3, RoundTrip: 3_000, Slack: 1_000,
	}
}

// Definition is the definition of live alone, for servers that promise nothing
// more: a provider may be missing where its owner is out of reach for longer
// than the lease and nobody there can dial it, be that the majority or not. How
// long the dead may be seen is as for Starling, so that figures compare.
func Definition() Limits {
	l := Documented()
	l.Preserved, l.Hold = 0, 0
	return l
}

// noticed is how long a client of the SDK may take to see that its node is
// silent.
func (l *Limits) noticed(sdk string) Millis {
	if n, ok := l.Notices[sdk]; ok {
		return n
	}
	return l.NoticeWithin
}

// leases are how long the server keeps at least what was on a node, and by when
// the dead among it are gone.
func (l *Limits) leases(refused bool, redo Millis) (keeps, gone Millis) {
	keeps, gone = l.Lease, l.LeaseGone
	if refused {
		keeps, gone = l.Refused, l.RefusedGone
	}
	if l.Patience > 0 && redo > keeps {
		keeps = redo + l.Patience
		if gone = redo + l.Patience; !refused {
			gone = redo + l.PatienceGone
		}
	}
	return keeps, gone
}
