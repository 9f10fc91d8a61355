package main

// mutants of the rules of design §§4–6, then the carriers, each of which the
// others must make up for.
var mutants = []mutant{
	{name: "skip tombstones", why: "what is gone elsewhere stays", run: "^TestNamed$/F02|F04", caught: []string{"late", "ghost", "diverge", "alarm", "apart"},
		changes: []change{{"distro/life.go", "		sorted = sorted && d.version > top\n", "		if d.gone {\n			continue\n		}\n		sorted = sorted && d.version > top\n"}}},
	{name: "frames with gaps", why: "a frame is applied although others before it are missing", run: "^TestNamed$|^TestRandom$", args: []string{"-sim.seeds=20"},
		caught:  []string{"diverge", "alarm", "gap", "late", "apart"},
		changes: []change{{"distro/life.go", "	case f.from > l.applied && !f.whole:", "	case false:"}}},
	{name: "old epochs", why: "the life before a restart goes on", run: "^TestNamed$/restart|F04|F13", caught: []string{"ghost", "late", "diverge", "apart"},
		changes: []change{
			{"distro/lives.go", "{ return d.epochs[id.Node] > id.Epoch }", "{ return false }"},
			{"distro/heads.go", "	if of.Epoch < d.epochs[from] {", "	if false {"},
		}},
	{name: "no adoption", why: "what a dead node had is not served on", run: "^TestNamed$/killed", caught: []string{"gap"},
		changes: []change{{"distro/lives.go", "		d.setStateLocked(l, registry.Orphaned, 0)\n", "		d.setStateLocked(l, registry.Orphaned, 0)\n		defer d.dropLocked(l, l.orphanedAt, \"mutant\")\n"}}},
	{name: "local clocks", why: "a lease counts from when a node noticed", run: "^TestNamed$|^TestRandom$", args: []string{"-sim.seeds=20"}, caught: []string{"apart", "late"},
		changes: []change{
			{"distro/lives.go", "d.opts.Leases.deadline(spoken, lease)", "d.opts.Leases.deadline(l.orphanedAt, lease)"},
			{"distro/heads.go", "		l.deadline = max(l.deadline, h.GetDeadline())\n", ""},
		}},
	{name: "no gossip frames", why: "changes travel on streams only", run: "^TestNamed$|^TestRandom$",
		changes: []change{{"distro/replicator.go", "		GossipFrames: true,", "		GossipFrames: false,"}}},
	{name: "no streams", why: "changes travel by gossip and reliable messages only", run: "^TestNamed$|^TestRandom$", args: []string{"-sim.nostreams"}},
}
