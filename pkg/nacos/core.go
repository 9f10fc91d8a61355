package nacos

import (
	"encoding/json"
	"net"
	"strconv"
	"strings"

	"github.com/starling-registry/starling/pkg/registry"
)

// What the core, console and accounts of Nacos tell (http-api §4.5, §6, §8.3).

// apiVersion is the release of Nacos whose recorded answers these are.
const apiVersion = "3.1.0"

// serverVersion is what stands where Nacos tells its release: tools expect
// three numbers, and what comes after a plus is whose they are.
func serverVersion(release string) string {
	return strings.TrimSuffix(apiVersion+"+starling."+release, ".")
}

// States of a member.
const (
	StateUp         = "UP"
	StateStarting   = "STARTING"
	StateSuspicious = "SUSPICIOUS"
	StateDown       = "DOWN"
	StateIsolation  = "ISOLATION"
)

// MemberStates are all there are.
var MemberStates = []string{StateStarting, StateUp, StateSuspicious, StateDown, StateIsolation}

// A Member is a server of the cluster.
type Member struct {
	Host           string // address or name
	Port, RaftPort int
	State          string
	LastHeard      int64  // Unix milliseconds; of the server itself: now
	Release        string // its own
	Self           bool   // the one that answers
	Raft           RaftGroup
}

// A RaftGroup is a log that the members keep together; addresses have the Raft
// port.
type RaftGroup struct {
	Leader  string // "": none is known
	Members []string
	Term    uint64
}

// RaftGroups are those that Nacos has. Here they are one log.
var RaftGroups = []string{"lock_acquire_service_v2", "naming_instance_metadata", "naming_persistent_service", "naming_persistent_service_v2", "naming_service_metadata"}

// Address names a member.
func (m *Member) Address() string { return net.JoinHostPort(m.Host, strconv.Itoa(m.Port)) }

// MarshalJSON is the recorded form (golden scenario 19).
func (m *Member) MarshalJSON() ([]byte, error) {
	type group struct {
		Leader  *string  `json:"leader"`
		Members []string `json:"raftGroupMember"`
		Term    uint64   `json:"term"`
	}
	g := group{Members: m.Raft.Members, Term: m.Raft.Term}
	if g.Members == nil {
		g.Members = []string{}
	}
	if m.Raft.Leader != "" {
		g.Leader = &m.Raft.Leader
	}
	groups := map[string]group{}
	for _, name := range RaftGroups {
		groups[name] = g
	}
	return json.Marshal(map[string]any{
		"ip": m.Host, "port": m.Port, "address": m.Address(), "state": m.State,
		"extendInfo": map[string]any{
			"lastRefreshTime": m.LastHeard, "raftMetaData": map[string]any{"metaDataMap": groups}, "raftPort": strconv.Itoa(m.RaftPort),
			"readyToUpgrade": true, "supportGrayModel": true, "version": serverVersion(m.Release),
		},
		"failAccessCnt": 0, "grpcReportEnabled": true, "abilities": json.RawMessage(memberAbilities),
	})
}

const memberAbilities = `{"configAbility":{"supportRemoteMetrics":false},"namingAbility":{"supportJraft":true},"remoteAbility":{"grpcReportEnabled":true,"supportRemoteConnection":true}}`

// State is server/state and core/state: texts under the names that Nacos has.
// What is about configuration has the defaults of Nacos; there is none here.
func State(port int, standalone bool, release string) map[string]string {
	mode := "cluster"
	if standalone {
		mode = "standalone"
	}
	return map[string]string{
		"version": serverVersion(release), "server_port": strconv.Itoa(port), "startup_mode": mode, "function_mode": "naming",
		"auth_enabled": "false", "auth_admin_request": "false", "auth_system_type": "nacos", "login_page_enabled": "false", "console_ui_enabled": "false",
		"datasource_platform": "", "plugin_datasource_log_enabled": "false", "config_retention_days": "30",
		"defaultClusterQuota": "100000", "defaultGroupQuota": "200", "defaultMaxAggrCount": "10000", "defaultMaxAggrSize": "1024", "defaultMaxSize": "102400",
		"maxContent": "10485760", "isCapacityLimitCheck": "false", "isManageCapacity": "true",
		"isHealthCheck": "true", "maxHealthCheckFailCount": "12", "notifyConnectTimeout": "100", "notifySocketTimeout": "200",
	}
}

// A Namespace as all versions show it. Quota and count are of configuration.
type Namespace struct {
	ID          string  `json:"namespace"`
	Name        string  `json:"namespaceShowName"`
	Description *string `json:"namespaceDesc"`
	Quota       int     `json:"quota"`
	ConfigCount int     `json:"configCount"`
	Type        int     `json:"type"` // 0: the default one, 1: any other
}

// DefaultNamespace is the one that is always there. Before v3 it has no id and
// no description.
func DefaultNamespace(id, description string) Namespace {
	n := OtherNamespace(id, "public", description)
	n.Type = 0
	return n
}

// OtherNamespace is one that somebody made, or that services are in.
func OtherNamespace(id, name, description string) Namespace {
	n := Namespace{ID: id, Name: name, Quota: namespaceQuota, Type: 1}
	if description != "" {
		n.Description = &description
	}
	return n
}

const namespaceQuota = 200

// AppendTarget appends an instance as discovery of Prometheus reads it
// (http-api §12): what it scrapes, and labels.
func AppendTarget(b []byte, key registry.ServiceKey, i *registry.Instance) []byte {
	b = AppendString(append(b, `{"targets":[`...), net.JoinHostPort(i.IP, strconv.Itoa(i.Port)))
	b = AppendString(append(b, `],"labels":{"__meta_clusterName":`...), i.Cluster)
	b = AppendString(append(b, `,"__meta_nacos_namespace":`...), key.Namespace)
	b = AppendString(append(b, `,"__meta_nacos_group":`...), key.Group)
	b = AppendString(append(b, `,"__meta_nacos_service":`...), key.Name)
	taken := map[string]bool{"__meta_clusterName": true, "__meta_nacos_namespace": true, "__meta_nacos_group": true, "__meta_nacos_service": true}
	// A key that is a label as it is goes before one that is made to be.
	for _, asIs := range []bool{true, false} {
		for _, kv := range i.Metadata {
			name := labelName.Replace(kv.Key)
			if taken[name] || (name == kv.Key) != asIs || !isLabel(name) {
				continue
			}
			taken[name] = true
			b = AppendString(append(AppendString(append(b, ','), name), ':'), kv.Value)
		}
	}
	return append(b, "}}"...)
}

var labelName = strings.NewReplacer(".", "_", "-", "_")

// isLabel reports whether Prometheus takes a name for a label: of one that it
// does not, it refuses the whole list.
func isLabel(name string) bool {
	return name != "" && only(name, "_") && (name[0] < '0' || name[0] > '9')
}
