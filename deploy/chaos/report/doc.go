// Package report tells what a run showed: as text for who waits for it, as JSON
// for programs, and as one HTML file with a timeline for who wants to know why.
//
// The invariant: it is pure. It knows a [Report] and where to write it; it reads
// no clock, no environment and no file. It judges nothing: what is wrong, the
// verdict says, and a gap that the verdict has is in every report. Names come from
// outside, times may be anything: no data makes it fail.
//
// Start reading at [Report]; scene.go turns a timeline into the lanes of the
// HTML page, page.html, page.css and page.js are what it looks like.
package report
