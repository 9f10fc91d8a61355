package registry

// Skeleton: signatures only, to be filled in.

// Take: see DESIGN.md.
func (r *Registry) Take(k RecordKey) Record { panic("not yet") }

// Apply lays records of another life into the services.
func (r *Registry) Apply(life Life, records []Record) { panic("not yet") }

// SetLife says what became of a life.
func (r *Registry) SetLife(life Life, s LifeState, back Stamp) { panic("not yet") }

// ForgetLife lets a life's records go.
func (r *Registry) ForgetLife(life Life) { panic("not yet") }

// Unanswered takes a probe result.
func (r *Registry) Unanswered(p Probe) { panic("not yet") }

// Orphans visits what is shown on behalf of a life.
func (r *Registry) Orphans(life Life, visit func(ServiceKey, *Shown)) { panic("not yet") }

// A Copy is what another life says of a client's publication.
type Copy struct {
	Instances []Published
	Life      Life
	Living    bool  // the life is living, and the copy not moving
	Since     Stamp // newest registration clock of the instances
}

// Copy finds the newest copy.
func (r *Registry) Copy(k ServiceKey, client string) (c Copy, ok bool) { panic("not yet") }

// A Hash stands for what readers see of a service.
type Hash struct {
	Sum       uint64 // of the instances, the same on all nodes; 0: there are none
	Changed   Stamp  // last visible change on this node
	Instances int
}

// Hashes visits all services.
func (r *Registry) Hashes(visit func(ServiceKey, Hash)) { panic("not yet") }

// Redo says how many seconds the client may take to register again.
func (c *Client) Redo(seconds int) { panic("not yet") }

// Move marks all that the client publishes as moving.
func (c *Client) Move() { panic("not yet") }

// Adopt is Register of one instance with its registration clock.
func (c *Client) Adopt(k ServiceKey, i *Instance, since Stamp) error { panic("not yet") }
