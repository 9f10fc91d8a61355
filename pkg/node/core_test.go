package node

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/pkg/nacos"
)

func TestMemberState(t *testing.T) {
	for _, c := range []struct {
		state                    cluster.State
		leaving, ready, draining bool
		want                     string
	}{
		{cluster.Alive, false, true, false, nacos.StateUp},
		{cluster.Alive, false, false, false, nacos.StateStarting},
		{cluster.Alive, false, true, true, nacos.StateIsolation},
		{cluster.Alive, true, true, false, nacos.StateIsolation},
		{cluster.Silent, false, true, false, nacos.StateSuspicious},
		{cluster.Refused, false, true, false, nacos.StateDown},
		{cluster.Left, true, true, true, nacos.StateDown},
	} {
		if is := memberState(cluster.Member{State: c.state, Leaving: c.leaving}, c.ready, c.draining); is != c.want {
			t.Errorf("%v is %s", c, is)
		}
	}
	now := time.Now()
	alive, gone := cluster.Member{State: cluster.Alive, Since: now}, cluster.Member{State: cluster.Left, Since: now.Add(time.Second)}
	if !newer(alive, gone) || newer(gone, alive) || !newer(gone, cluster.Member{State: cluster.Refused, Since: now}) {
		t.Error("of two with one address the one that is there is shown, else the newest")
	}
}

// eventually waits for a condition; the text says what is still missing.
func eventually(t *testing.T, missing func() string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		why := missing()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(why)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// trio starts three nodes on loopback addresses of their own.
func trio(t *testing.T) []*Node {
	t.Helper()
	network := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), rand.IntN(256))
	var nodes []*Node
	for i := range 3 {
		o := DefaultOptions()
		o.Name, o.DataDir, o.Port = fmt.Sprint("node-", i), t.TempDir(), 18848
		o.Bind, o.Expect, o.NoSync = network+fmt.Sprint(i+1), 3, true
		o.Join = []string{network + "1", network + "2", network + "3"}
		o.Version = "v0.0.1"
		n := start(t, o)
		nodes = append(nodes, n)
		t.Cleanup(func() { stop(t, n) })
	}
	for _, n := range nodes {
		eventually(t, func() string {
			if code, body := get(t, n, "GET", "/readyz"); code != 200 {
				return body
			}
			if _, body := get(t, n, "GET", "/nacos/v1/core/cluster/self"); !strings.Contains(body, `"leader":"`) {
				return "nobody leads: " + body
			}
			return ""
		})
	}
	return nodes
}

func TestCoreOfThree(t *testing.T) {
	nodes := trio(t)
	type member struct {
		Address, State string
		ExtendInfo     struct {
			Version      string
			RaftMetaData struct {
				MetaDataMap map[string]struct {
					Leader          string
					RaftGroupMember []string
				}
			}
		}
	}
	var leader string // its Raft address
	for _, n := range nodes {
		eventually(t, func() string {
			var list struct{ Data []member }
			_, body := get(t, n, "GET", "/nacos/v3/admin/core/cluster/node/list?state=UP")
			if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Data) != 3 {
				return "not all are up: " + body
			}
			for _, m := range list.Data {
				group := m.ExtendInfo.RaftMetaData.MetaDataMap["naming_persistent_service_v2"]
				if len(group.RaftGroupMember) != 3 || !strings.HasSuffix(group.Leader, ":17848") || m.ExtendInfo.Version != "3.1.0+starling.v0.0.1" {
					return "a member lacks something: " + body
				}
				leader = group.Leader
			}
			if _, list := get(t, n, "GET", "/nacos/serverlist"); strings.Count(list, ":18848\r\n") != 3 {
				return "serverlist: " + list
			}
			return ""
		})
	}

	// What is written at a follower is seen at all.
	var follower, leads *Node
	for _, n := range nodes {
		if host, _, _ := strings.Cut(leader, ":"); strings.HasPrefix(n.HTTPAddr().String(), host+":") {
			leads = n
		} else {
			follower = n
		}
	}
	want := func(path, text string) {
		t.Helper()
		for _, n := range nodes {
			eventually(t, func() string {
				if code, body := get(t, n, "GET", path); code != 200 || !strings.Contains(body, text) {
					return fmt.Sprint(n.HTTPAddr(), path, ": ", code, body)
				}
				return ""
			})
		}
	}
	if code, body := get(t, follower, "POST", "/nacos/v1/console/namespaces?customNamespaceId=dev&namespaceName=Dev"); code != 200 || body != "true" {
		t.Fatalf("namespace: %d %s", code, body)
	}
	want("/nacos/v1/console/namespaces", `"namespace":"dev","namespaceShowName":"Dev"`)
	want("/nacos/v3/admin/core/namespace/list", `"namespace":"dev","namespaceShowName":"Dev"`)
	if code, body := get(t, nodes[1], "POST", "/nacos/v2/console/namespace?namespaceId=dev&namespaceName=Dev"); code != 400 || !strings.Contains(body, "22002") {
		t.Errorf("twice: %d %s", code, body)
	}
	if code, body := get(t, follower, "POST", "/nacos/v1/auth/users?username=anna&password=secret"); code != 200 {
		t.Fatalf("user: %d %s", code, body)
	}
	want("/nacos/v1/auth/users?pageNo=1&pageSize=9", `"username":"anna"`)
	for _, n := range nodes {
		if code, _ := get(t, n, "POST", "/nacos/v1/auth/login?username=anna&password=wrong"); code != 403 {
			t.Errorf("a wrong password: %d", code)
		}
		if code, _ := get(t, n, "POST", "/nacos/v1/auth/login?username=anna&password=secret"); code != 200 {
			t.Errorf("the right password: %d", code)
		}
	}

	// The lead is handed over by who has it.
	handOver := func(n *Node, status int, says string) {
		t.Helper()
		resp, err := http.Post("http://"+n.HTTPAddr().String()+"/nacos/v1/core/ops/raft", "application/json", strings.NewReader(`{"command":"transferLeader"}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != status || !strings.Contains(string(body), says) {
			t.Errorf("hand over: %d %s", resp.StatusCode, body)
		}
	}
	handOver(follower, 409, "ask "+leads.HTTPAddr().String())
	handOver(leads, 200, `"code":200`)
	eventually(t, func() string {
		_, body := get(t, leads, "GET", "/nacos/v1/core/cluster/self")
		if host, _, _ := strings.Cut(leader, ":"); strings.Contains(body, `"leader":"`+host) || !strings.Contains(body, `"leader":"`) {
			return "it still leads, or nobody: " + body
		}
		return ""
	})
}
