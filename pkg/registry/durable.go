package registry

// What the log of the cluster (package raftstore) says of services. It reaches
// the registry through [Registry.Commit], in the order of the log.

// A Change is what happened to one service.
type Change struct {
	Service ServiceKey
	// Described: Meta is what holds from now on, nil if nobody describes the
	// service any more.
	Described bool
	Meta      *ServiceMeta
	Instances []PersistentChange
	Overrides []OverrideChange
}

// A PersistentChange is the new state of one persistent instance.
type PersistentChange struct {
	InstanceKey
	Is    *Persistent // nil: it is gone
	Cause Cause
}

// A Persistent is an instance that stays until it is deregistered.
type Persistent struct {
	*Instance // its Persistent is set; Healthy is as registered, or as an operator said
	// Since is when it was registered; a change of what is there does not move it.
	Since Stamp
	// Judged is when its health was said by its registration, or by hand:
	// checks made before do not count.
	Judged Stamp
}

// An OverrideChange is the new state of an operator's edit.
type OverrideChange struct {
	InstanceKey
	Is    *Override // nil: it is over
	Cause Cause
}

// An Edit names an operator's edit at a revision.
type Edit struct {
	Service ServiceKey
	InstanceKey
	Revision uint64
	Cause    Cause // why it is over
}

// A Check is what the health check of a persistent instance found. The newest
// counts, whoever made it.
type Check struct {
	Service ServiceKey
	InstanceKey
	Healthy bool
	Made    Stamp
	By      Life   // whose record it is
	Reason  string // for people
}
