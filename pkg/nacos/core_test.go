package nacos

import (
	"encoding/json"
	"testing"

	"github.com/starling-registry/starling/pkg/registry"
)

func TestMember(t *testing.T) { // golden scenario 19
	m := Member{Host: "fd00::7", Port: 8848, RaftPort: 7848, State: StateUp, LastHeard: 1796042683373, Release: "v0.1.0", Raft: RaftGroup{Leader: "10.0.0.1:7848", Members: []string{"10.0.0.1:7848"}, Term: 3}}
	const group = `{"leader":"10.0.0.1:7848","raftGroupMember":["10.0.0.1:7848"],"term":3}`
	b, err := json.Marshal(&m)
	if want := `{"abilities":{"configAbility":{"supportRemoteMetrics":false},"namingAbility":{"supportJraft":true},"remoteAbility":{"grpcReportEnabled":true,"supportRemoteConnection":true}},` +
		`"address":"[fd00::7]:8848","extendInfo":{"lastRefreshTime":1796042683373,"raftMetaData":{"metaDataMap":{"lock_acquire_service_v2":` + group + `,"naming_instance_metadata":` + group +
		`,"naming_persistent_service":` + group + `,"naming_persistent_service_v2":` + group + `,"naming_service_metadata":` + group + `}},"raftPort":"7848","readyToUpgrade":true,"supportGrayModel":true,` +
		`"version":"3.1.0+starling.v0.1.0"},"failAccessCnt":0,"grpcReportEnabled":true,"ip":"fd00::7","port":8848,"state":"UP"}`; err != nil || string(b) != want {
		t.Errorf("%v:\nis   %s\nwant %s", err, b, want)
	}
	if v := serverVersion(""); v != "3.1.0+starling" {
		t.Errorf("a release that is not known: %s", v)
	}
}

func TestTarget(t *testing.T) {
	key := registry.ServiceKey{Namespace: "public", Group: "g", Name: "s"}
	const always = `"labels":{"__meta_clusterName":"c","__meta_nacos_namespace":"public","__meta_nacos_group":"g","__meta_nacos_service":"s"`
	f := func(ip string, metadata map[string]string, want string) {
		t.Helper()
		i := registry.Instance{InstanceKey: registry.InstanceKey{IP: ip, Port: 80, Cluster: "c"}, Metadata: registry.NewMetadata(metadata)}
		if is := string(AppendTarget(nil, key, &i)); is != want {
			t.Errorf("\nis   %s\nwant %s", is, want)
		}
		if !json.Valid(AppendTarget(nil, key, &i)) {
			t.Error("it is no JSON")
		}
	}
	f("10.0.0.7", nil, `{"targets":["10.0.0.7:80"],`+always+`}}`)
	f("fd00::7", map[string]string{"zone": "a", "app.name": `"x"`, "b-c": "1"}, `{"targets":["[fd00::7]:80"],`+always+`,"zone":"a","app_name":"\"x\"","b_c":"1"}}`)
	// No label, one that is taken already, and two that would be the same.
	f("h", map[string]string{"1a": "x", "": "x", "ä": "x", "a b": "x", "__meta_clusterName": "x", "--meta.nacos_group": "x", "a.b": "2", "a_b": "1", "a-b": "3"},
		`{"targets":["h:80"],`+always+`,"a_b":"1"}}`)
}
