// Package distro replicates what the clients of each node publish to all
// nodes, and decides what becomes of it when a node goes (design §§5, 6).
//
// Everything a node owns is stamped with its life: the node and one of its
// runs. Only the living owner writes a life; each write gets the next version,
// and of every key only the newest version is kept. What a node knows of a
// life is one number, the prefix of versions that it has applied: a frame
// (from, to] is applied only if from is not above it, whatever carrier brought
// it and whoever sent it. Heads tell each second who has what; who is behind
// pulls.
//
// When a node goes, its life is orphaned and served as last seen, until a
// lease ends; then it is dropped as a whole, and the drop is remembered and
// told in the heads. A life comes back only with a later head of its owner.
//
// Invariant: a life holds exactly the newest record of every key that was
// written up to its applied version, but for tombstones up to its floor.
//
// Start reading at life.go (merge and cut), then heads.go, lives.go (judge),
// lease.go and tick.go. DESIGN.md says why.
package distro
