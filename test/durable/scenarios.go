package main

import "context"

// A scenario ends with a cluster that is as it should be, or an error. What it
// returns are figures for people.
type scenario struct {
	name string
	what string
	long bool // not in the short form
	play func(context.Context, *stage) (string, error)
}

var scenarios = []scenario{
	{"kill-leader", "kill -9 of the leader in the middle of many writes of 24 clients over HTTP and gRPC: each acknowledged one is there on all nodes, no refused one", false, killLeader},
	{"stop-all", "SIGTERM to all nodes while clients write, start", false, stopAll},
	{"kill-all", "kill -9 of all nodes while clients write, start", false, killAll},
	{"second-process", "a second process in a data directory says so and ends within 2 s", false, secondProcess},
	{"without-quorum", "two of three are killed: ephemeral instances and reads go on, writes to the log are refused in time", false, withoutQuorum},
	{"moved-ports", "a node comes back at other ports, then all at once", false, movedPorts},
	{"emptied", "a data directory is deleted: its node joins as a new one and votes", false, emptied},
	{"damaged", "torn, random and zeroed pages: the node does not start, says what to do, and that helps", false, damaged},
	{"full-disk", "a full file system under the leader, under a follower and at the start", false, fullDisk},
	{"backup", "a backup, restored into a new cluster of another size; not into one that holds something", false, backup},
	{"overrides", "what an operator set on an ephemeral instance stays through reconnects and restarts (C13)", false, overrides},
	{"recover", "the quorum is lost for good: starling recover on one node, the others take its log", false, recovered},
	{"size", "100,000 writes: the log stays small; a node that was away gets a snapshot (C44)", true, size},
}
