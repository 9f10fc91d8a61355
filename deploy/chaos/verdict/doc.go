// Package verdict judges what subscribers saw of a cluster that was broken on
// purpose.
//
// The invariant: it knows nothing but a [Timeline] and an [Expectation]: no
// clock, no process, no network. So each rule is tested with a few lines of
// data, and a recorded run can be judged again.
//
// Start reading at [Judge].
package verdict
