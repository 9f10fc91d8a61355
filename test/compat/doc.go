// Package compat runs one list of scenarios against a real "starling serve" process by the official
// SDKs, each unmodified and in a process of its own.
//
// The invariant: a scenario is written once and says what an application may rely on; nothing in it
// depends on the SDK. What an SDK needs in order to take part is its driver (folder drivers), and
// what it cannot do is a note beside its declaration (sdk_test.go), which the report repeats.
//
// Start reading at scenarios_test.go. How to run one SDK and how to add one: README.md.
package compat
