package raftstore

import (
	"fmt"
	"testing"
	"unsafe"
)

func stringData(s string) *byte { return unsafe.StringData(s) }

func TestNamesAreBounded(t *testing.T) {
	n := names{}
	for i := range 3 * mostNames {
		if s := fmt.Sprint(i); n.get(s) != s || n.of([]byte(s)) != s || len(n) > mostNames {
			t.Fatalf("%d names", len(n))
		}
	}
}
