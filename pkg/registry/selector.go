package registry

// A Selector narrows the hosts of a service by labels of consumer and
// provider that a CMDB knows. Starling has no CMDB, and without one every
// selector chooses all hosts (semantics V13); it is kept so that what an
// operator set can be read back.
type Selector struct {
	Type       string // "none" or "label"
	Expression string // of a label selector
}
