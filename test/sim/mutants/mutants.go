package main

// mutants of the rules of design §§4–6, then the carriers, each of which the
// others must make up for. Without streams there is no Forward either, so no
// HTTP client takes part.
var mutants = []mutant{
	{name: "skip tombstones", why: "what is gone elsewhere stays", run: "^TestNamed$/(F02|F04)", caught: []string{"late", "ghost", "diverge", "alarm", "apart"},
		changes: []change{{"distro/life.go", "		sorted = sorted && d.version > top\n", "		if d.gone {\n			continue\n		}\n		sorted = sorted && d.version > top\n"}}},
	{name: "frames with gaps", why: "a frame is applied although others before it are missing", run: "^TestRandom$", args: []string{"-sim.seeds=40", "-sim.nostreams"},
		caught:  []string{"diverge", "alarm", "busy", "gap", "late", "apart"},
		changes: []change{{"distro/life.go", "	case f.from > l.applied && !f.whole:", "	case false:"}}},
	{name: "old epochs", why: "the life before a restart goes on", run: "^TestNamed$/(restart|F04|F13)", caught: []string{"gap", "ghost", "late", "diverge", "apart"},
		changes: []change{
			{"distro/lives.go", "{ return d.epochs[id.Node] > id.Epoch }", "{ return false }"},
			{"distro/heads.go", "	if of.Epoch < d.epochs[from] {", "	if false {"},
		}},
	{name: "no adoption", why: "what a dead node had is not served on", run: "^TestNamed$/killed", caught: []string{"gap"},
		changes: []change{{"distro/lives.go", "		d.setStateLocked(l, registry.Orphaned, l.ownerClock)\n		d.metrics", "		d.setStateLocked(l, registry.Orphaned, l.ownerClock)\n		defer d.dropLocked(l, l.orphanedAt, \"mutant\")\n		d.metrics"}}},
	{name: "local clocks", why: "a lease counts from when a node noticed", run: "^TestNamed$/F14", caught: []string{"apart", "late"},
		changes: []change{
			{"distro/lives.go", "d.opts.Leases.deadline(spoken, l.silent, lease)", "d.opts.Leases.deadline(l.orphanedAt, l.silent, lease)"},
			{"distro/heads.go", "		l.deadline = max(l.deadline, h.GetDeadline())\n", ""},
		}},
	{name: "no hides", why: "what was withdrawn hides nothing", run: "^TestNamed$/(F02|F03|F04|F22)", caught: []string{"late", "resurrect", "ghost", "diverge"},
		changes: []change{{"pkg/registry/service.go", "c.since <= strong.of(kind) || c.since <= weak.of(kind) && !c.stands() || ", "false && (c.since <= strong.of(kind) || c.since <= weak.of(kind)) || "}}},
	{name: "removed, not moving", why: "what a client published goes with its connection, although the client is expected elsewhere", run: "^TestNamed$/(F01|F08|rolling|paused)", caught: []string{"gap"},
		changes: []change{{"pkg/grpcapi/moving.go", "	s.metrics.kept.Inc()\n	c.client.Move()\n", "	s.metrics.kept.Inc()\n	c.client.Close(cause)\n"}}},
	{name: "no stall detection", why: "a process does not notice that it stood still", run: "^TestNamed$/(F08|F20|paused)|^TestRandom$", args: []string{"-sim.seeds=60", "-sim.faults=freeze die update shrink dereg"}, caught: []string{"gap", "resurrect", "late", "ghost"},
		changes: []change{{"pkg/node/pulse.go", "	stallDrift = 2 * time.Second", "	stallDrift = 2 * time.Hour"}}},
	{name: "no expiry probe", why: "a silent lease ends whoever still answers", run: "^TestNamed$/(F11|F23|for_40_s)", caught: []string{"gap"},
		changes: []change{{"distro/lease.go", "	case s.probe && (o.silent", "	case false && (o.silent"}}},
	{name: "clocks of their own", why: "a node does not take over later clocks", run: "^TestNamed$/F07", caught: []string{"time", "gap", "reorder", "diverge"},
		changes: []change{
			{"pkg/registry/clock.go", "func (c *Clock) Adopt(s Stamp) {\n", "func (c *Clock) Adopt(s Stamp) {\n	if s != 0 {\n		return\n	}\n"},
		}},
	{name: "no snapshot", why: "a restarted cluster begins with nothing", run: "^TestNamed$/F20_start", caught: []string{"gap"},
		changes: []change{{"distro/snapshot.go", "	if d.opts.Load == nil {\n", "	if d.opts.Load != nil || d.opts.Load == nil {\n"}}},
	{name: "pull from the owner only", why: "what an owner cannot send itself does not arrive", run: "^TestNamed$/(F11|F12|F06)", caught: []string{"diverge", "gap", "apart"},
		changes: []change{{"distro/heads.go", "	case applied > l.applied:\n", "	case applied > l.applied && p.id != id.Node:\n	case applied > l.applied:\n"},
			{"distro/replicator.go", "		GossipFrames: true,", "		GossipFrames: false,"}}},
	{name: "no gossip frames", why: "changes travel on streams only", run: "^TestNamed$|^TestRandom$",
		changes: []change{{"distro/replicator.go", "		GossipFrames: true,", "		GossipFrames: false,"}}},
	{name: "no streams", why: "changes travel by gossip and reliable messages only", run: "^TestRandom$", args: []string{"-sim.nostreams", "-sim.seeds=30", "-sim.clients=java go python java"}},
}
