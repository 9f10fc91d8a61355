package httpapi

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// A route is an endpoint of the Nacos API.
type route struct {
	method string // "": any
	path   string // below the context path
	handle func(*call) error
	as     routeKind
}

type routeKind uint8

const (
	// owner: what HTTP clients write is carried out by the node that keeps
	// the client.
	owner routeKind = 1 + iota
	// always: it is answered also while the node is not ready.
	always
	// probe: always, and without the context path, too: probes look at the
	// port of Nacos' console, which has none.
	probe
)

// routes are all endpoints of the Nacos API, by version and then by what they
// are about (http-api §1). A path that is not here is answered by noSuchAPI,
// another method of one that is by wrongMethod.
func (s *Server) routes() []route {
	scrape := s.metricsHandler()
	return []route{
		// v1: instances.
		{"POST", "/v1/ns/instance", s.register, owner},
		{"DELETE", "/v1/ns/instance", s.deregister, owner},
		{"PUT", "/v1/ns/instance/beat", s.beat, owner},
		{"PUT", "/v1/ns/instance", s.update, 0},
		{"PATCH", "/v1/ns/instance", s.patch, 0},
		{"GET", "/v1/ns/instance", s.detail, 0},
		{"GET", "/v1/ns/instance/list", s.list, 0},
		{"", "/v1/ns/instance/statuses", s.statuses, 0},
		{"PUT", "/v1/ns/instance/metadata/batch", s.putMetadata, 0},
		{"DELETE", "/v1/ns/instance/metadata/batch", s.removeMetadata, 0},
		{"", "/v1/ns/api/allDomNames", s.domains, 0}, // of 1.x, for CoreDNS
		{"", "/v1/ns/api/srvIPXT", s.domain, 0},

		// v1: services.
		{"POST", "/v1/ns/service", s.createService, 0},
		{"PUT", "/v1/ns/service", s.updateService, 0},
		{"DELETE", "/v1/ns/service", s.removeService, 0},
		{"GET", "/v1/ns/service", s.service, 0},
		{"GET", "/v1/ns/service/list", s.serviceNames, 0},
		{"GET", "/v1/ns/service/selector/types", s.selectorTypes, 0},
		{"", "/v1/ns/service/names", s.searchNames, 0},

		// v1: who subscribes.
		{"GET", "/v1/ns/service/subscribers", s.subscribers, 0},

		// v1: the catalog of the console.
		{"GET", "/v1/ns/catalog/service", s.catalogService, 0},
		{"GET", "/v1/ns/catalog/services", s.catalogServices, 0},
		{"", "/v1/ns/catalog/instances", s.catalogInstances, 0},

		// v1: clusters and health.
		{"PUT", "/v1/ns/cluster", s.putCluster, 0},
		{"PUT", "/v1/ns/health", s.setHealth, 0},
		{"PUT", "/v1/ns/health/instance", s.setHealth, 0},
		{"GET", "/v1/ns/health/checkers", s.checkers, 0},
		{"", "/v1/ns/health/server", s.healthServer, 0},

		// v1: the server, for clients and operators.
		{"GET", "/v1/ns/operator/metrics", s.operatorMetrics, 0},
		{"GET", "/v1/ns/ops/metrics", s.operatorMetrics, 0},
		{"GET", "/v1/ns/operator/switches", s.showSwitches, 0},
		{"GET", "/v1/ns/ops/switches", s.showSwitches, 0},
		{"PUT", "/v1/ns/operator/switches", s.setSwitch, 0},
		{"PUT", "/v1/ns/ops/switches", s.setSwitch, 0},
		{"", "/v1/ns/operator/push/state", s.pushState, 0},
		{"", "/v1/ns/ops/push/state", s.pushState, 0},
		{"GET", "/v1/ns/operator/distro/client", s.responsible, 0},
		{"GET", "/v1/ns/ops/distro/client", s.responsible, 0},
		{"PUT", "/v1/ns/operator/log", s.setLogLevel, 0},
		{"PUT", "/v1/ns/ops/log", s.setLogLevel, 0},

		// v1: core.
		{"GET", "/v1/core/cluster/nodes", s.clusterNodes, always},
		{"GET", "/v1/core/cluster/self", s.clusterSelf, always},
		{"GET", "/v1/core/cluster/simple/nodes", s.clusterAddresses, always},
		{"GET", "/v1/core/cluster/health", s.clusterHealth, always},
		{"POST", "/v1/core/cluster/report", s.peersOnly, always},
		{"POST", "/v1/core/cluster/switch/lookup", s.lookup, always},
		{"POST", "/v1/core/cluster/server/leave", s.leave, always},
		{"POST", "/v1/core/ops/raft", s.raftCommand, always},
		{"GET", "/v1/core/ops/idInfo", s.ids, always},
		{"PUT", "/v1/core/ops/log", s.coreLog, always},

		// v1: console.
		{"GET", "/v1/console/health/liveness", s.liveness, probe},
		{"GET", "/v1/console/health/readiness", s.readiness, probe},
		{"GET", "/v1/console/server/state", s.state, always},
		{"GET", "/v1/console/server/announcement", s.noText, always},
		{"GET", "/v1/console/server/guide", s.noText, always},
		{"GET", "/v1/console/namespaces", s.namespaceList, 0},
		{"POST", "/v1/console/namespaces", s.createNamespace, 0},
		{"PUT", "/v1/console/namespaces", s.updateNamespace, 0},
		{"DELETE", "/v1/console/namespaces", s.removeNamespace, 0},

		// v1: accounts.
		{"POST", "/v1/auth/login", s.login, 0},
		{"POST", "/v1/auth/users/login", s.login, 0},
		{"GET", "/v1/auth/users", s.users, 0},
		{"GET", "/v1/auth/users/search", s.userNames, 0},
		{"POST", "/v1/auth/users", s.createUser, 0},
		{"POST", "/v1/auth/users/admin", s.createAdmin, 0},
		{"PUT", "/v1/auth/users", s.updateUser, 0},
		{"DELETE", "/v1/auth/users", s.removeUser, 0},
		{"", "/v1/auth/roles", s.noRoles, always},
		{"", "/v1/auth/roles/search", s.noRoles, always},
		{"", "/v1/auth/permissions", s.noRoles, always},

		// v2: instances.
		{"POST", "/v2/ns/instance", s.register, owner},
		{"DELETE", "/v2/ns/instance", s.deregister, owner},
		{"PUT", "/v2/ns/instance", s.update, 0},
		{"GET", "/v2/ns/instance", s.detail, 0},
		{"GET", "/v2/ns/instance/list", s.list, 0},
		{"PATCH", "/v2/ns/instance", s.patchV2, 0},
		{"PUT", "/v2/ns/instance/beat", s.beat, owner},
		{"", "/v2/ns/instance/statuses/{key}", s.statuses, 0},
		{"PUT", "/v2/ns/instance/metadata/batch", s.putMetadata, 0},
		{"DELETE", "/v2/ns/instance/metadata/batch", s.removeMetadata, 0},

		// v2: services.
		{"POST", "/v2/ns/service", s.createService, 0},
		{"PUT", "/v2/ns/service", s.updateService, 0},
		{"DELETE", "/v2/ns/service", s.removeService, 0},
		{"GET", "/v2/ns/service", s.service, 0},
		{"GET", "/v2/ns/service/list", s.serviceNames, 0},

		// v2: clients.
		{"GET", "/v2/ns/client", s.clientDetail, 0},
		{"GET", "/v2/ns/client/list", s.clientIDs, 0},
		{"GET", "/v2/ns/client/publish/list", s.published, 0},
		{"GET", "/v2/ns/client/subscribe/list", s.subscribed, 0},
		{"GET", "/v2/ns/client/service/publisher/list", s.publishers, 0},
		{"GET", "/v2/ns/client/service/subscriber/list", s.subscribing, 0},

		// v2: the catalog of the console.
		{"", "/v2/ns/catalog/instances", s.catalogInstancesV2, 0},

		// v2: health.
		{"PUT", "/v2/ns/health", s.setHealth, 0},
		{"PUT", "/v2/ns/health/instance", s.setHealth, 0},

		// v2: the server, for operators.
		{"GET", "/v2/ns/operator/metrics", s.operatorMetrics, 0},
		{"GET", "/v2/ns/ops/metrics", s.operatorMetrics, 0},
		{"GET", "/v2/ns/operator/switches", s.showSwitches, 0},
		{"GET", "/v2/ns/ops/switches", s.showSwitches, 0},
		{"PUT", "/v2/ns/operator/switches", s.setSwitch, 0},
		{"PUT", "/v2/ns/ops/switches", s.setSwitch, 0},

		// v2: core and console.
		{"GET", "/v2/core/cluster/node/self", s.clusterSelf, always},
		{"GET", "/v2/core/cluster/node/list", s.clusterNodes, always},
		{"GET", "/v2/core/cluster/node/self/health", s.clusterHealth, always},
		{"GET", "/v2/core/cluster/nodes", s.clusterNodes, always},
		{"GET", "/v2/core/cluster/nodes/self", s.clusterSelf, always},
		{"PUT", "/v2/core/cluster/node/list", s.peersOnly, always},
		{"PUT", "/v2/core/cluster/lookup", s.lookup, always},
		{"DELETE", "/v2/core/cluster/nodes", s.leave, always},
		{"POST", "/v2/core/ops/raft", s.raftCommand, always},
		{"GET", "/v2/core/ops/ids", s.ids, always},
		{"PUT", "/v2/core/ops/log", s.coreLog, always},
		{"GET", "/v2/core/loader/current", s.loaderCurrent, always},
		{"GET", "/v2/core/loader/cluster", s.loaderCluster, always},
		{"GET", "/v2/core/loader/reloadCurrent", s.loaderReload, always},
		{"GET", "/v2/core/loader/smartReloadCluster", s.loaderReload, always},
		{"GET", "/v2/core/loader/reloadClient", s.loaderReload, always},
		{"GET", "/v2/console/namespace/list", s.namespaceList, 0},
		{"GET", "/v2/console/namespace", s.namespace, 0},
		{"POST", "/v2/console/namespace", s.createNamespace, 0},
		{"PUT", "/v2/console/namespace", s.updateNamespace, 0},
		{"DELETE", "/v2/console/namespace", s.removeNamespace, 0},
		{"GET", "/v2/console/health/liveness", s.liveness, probe},
		{"GET", "/v2/console/health/readiness", s.readiness, probe},

		// v3: clients.
		{"POST", "/v3/client/ns/instance", s.registerOrRenew, owner},
		{"DELETE", "/v3/client/ns/instance", s.deregister, owner},
		{"GET", "/v3/client/ns/instance/list", s.hosts, 0},

		// v3: instances, for operators.
		{"POST", "/v3/admin/ns/instance", s.register, owner},
		{"DELETE", "/v3/admin/ns/instance", s.deregister, owner},
		{"PUT", "/v3/admin/ns/instance", s.update, 0},
		{"PUT", "/v3/admin/ns/instance/partial", s.patch, 0},
		{"GET", "/v3/admin/ns/instance", s.detail, 0},
		{"GET", "/v3/admin/ns/instance/list", s.allHosts, 0},
		{"PUT", "/v3/admin/ns/instance/metadata/batch", s.putMetadata, 0},
		{"DELETE", "/v3/admin/ns/instance/metadata/batch", s.removeMetadata, 0},
		{"PUT", "/v3/admin/ns/instance/beat", s.beat, owner}, // of no Nacos, but PHP asks for it

		// v3: services.
		{"POST", "/v3/admin/ns/service", s.createService, 0},
		{"PUT", "/v3/admin/ns/service", s.updateService, 0},
		{"DELETE", "/v3/admin/ns/service", s.removeService, 0},
		{"GET", "/v3/admin/ns/service", s.service, 0},
		{"GET", "/v3/admin/ns/service/list", s.serviceViews, 0},
		{"GET", "/v3/admin/ns/service/selector/types", s.selectorTypes, 0},

		// v3: clients and who subscribes, for operators.
		{"GET", "/v3/admin/ns/service/subscribers", s.subscribers, 0},
		{"GET", "/v3/admin/ns/client", s.clientDetail, 0},
		{"GET", "/v3/admin/ns/client/list", s.clientIDs, 0},
		{"GET", "/v3/admin/ns/client/publish/list", s.published, 0},
		{"GET", "/v3/admin/ns/client/subscribe/list", s.subscribed, 0},
		{"GET", "/v3/admin/ns/client/service/publisher/list", s.publishers, 0},
		{"GET", "/v3/admin/ns/client/service/subscriber/list", s.subscribing, 0},

		// v3: clusters and health.
		{"PUT", "/v3/admin/ns/cluster", s.putCluster, 0},
		{"PUT", "/v3/admin/ns/health/instance", s.setHealth, 0},
		{"GET", "/v3/admin/ns/health/checkers", s.checkers, 0},

		// v3: the server, for operators.
		{"GET", "/v3/admin/ns/ops/metrics", s.operatorMetrics, 0},
		{"GET", "/v3/admin/ns/ops/switches", s.showSwitches, 0},
		{"PUT", "/v3/admin/ns/ops/switches", s.setSwitch, 0},
		{"PUT", "/v3/admin/ns/ops/log", s.setLogLevel, 0},
		{"GET", "/v3/admin/ns/client/distro", s.responsible, 0},

		// v3: core and console.
		{"GET", "/v3/admin/core/cluster/node/self", s.clusterSelf, always},
		{"GET", "/v3/admin/core/cluster/node/list", s.clusterNodes, always},
		{"PUT", "/v3/admin/core/cluster/node/list", s.peersOnly, always},
		{"PUT", "/v3/admin/core/cluster/lookup", s.lookup, always},
		{"POST", "/v3/admin/core/ops/raft", s.raftCommand, always},
		{"GET", "/v3/admin/core/ops/ids", s.ids, always},
		{"PUT", "/v3/admin/core/ops/log", s.coreLog, always},
		{"GET", "/v3/admin/core/loader/current", s.loaderCurrent, always},
		{"GET", "/v3/admin/core/loader/cluster", s.loaderCluster, always},
		{"POST", "/v3/admin/core/loader/reloadCurrent", s.loaderReload, always},
		{"POST", "/v3/admin/core/loader/smartReloadCluster", s.loaderReload, always},
		{"POST", "/v3/admin/core/loader/reloadClient", s.loaderReload, always},
		{"GET", "/v3/admin/core/namespace/list", s.namespaceList, 0},
		{"GET", "/v3/admin/core/namespace", s.namespace, 0},
		{"GET", "/v3/admin/core/namespace/check", s.namespaceExists, 0},
		{"POST", "/v3/admin/core/namespace", s.createNamespace, 0},
		{"PUT", "/v3/admin/core/namespace", s.updateNamespace, 0},
		{"DELETE", "/v3/admin/core/namespace", s.removeNamespace, 0},
		{"GET", "/v3/admin/core/state", s.state, always},
		{"GET", "/v3/admin/core/state/liveness", s.liveness, always},
		{"GET", "/v3/admin/core/state/readiness", s.readiness, always},
		{"GET", "/v3/console/health/liveness", s.liveness, probe},
		{"GET", "/v3/console/health/readiness", s.consoleReadiness, probe},

		// v3: accounts.
		{"POST", "/v3/auth/user/login", s.login, 0},
		{"GET", "/v3/auth/user/list", s.users, 0},
		{"GET", "/v3/auth/user/search", s.userNames, 0},
		{"POST", "/v3/auth/user", s.createUser, 0},
		{"POST", "/v3/auth/user/admin", s.createAdmin, 0},
		{"PUT", "/v3/auth/user", s.updateUser, 0},
		{"DELETE", "/v3/auth/user", s.removeUser, 0},
		{"", "/v3/auth/role", s.noRoles, always},
		{"", "/v3/auth/role/list", s.noRoles, always},
		{"", "/v3/auth/role/search", s.noRoles, always},
		{"", "/v3/auth/permission", s.noRoles, always},
		{"", "/v3/auth/permission/list", s.noRoles, always},

		// Without a version.
		{"GET", "/prometheus", s.targets, 0},
		{"GET", "/prometheus/namespaceId/{namespaceId}", s.targets, 0},
		{"GET", "/prometheus/namespaceId/{namespaceId}/service/{service}", s.targets, 0},
		{"GET", "/serverlist", s.serverList, 0},
		{"GET", "/actuator/health", s.actuatorHealth, always},
		{"GET", "/actuator/prometheus", func(c *call) error { return scrape(c.w, c.r) }, always},
	}
}

// An Endpoint is a method ("": any) and a path below the context path, which
// may have a {name} in it.
type Endpoint struct{ Method, Path string }

// Endpoints lists the Nacos API, for tests that leave none of it out.
func Endpoints() []Endpoint {
	var all []Endpoint
	for _, rt := range new(Server).routes() {
		all = append(all, Endpoint{rt.method, rt.path})
	}
	return all
}

// nacosRoutes adds the Nacos API.
func (s *Server) nacosRoutes(plain func(pattern string, h handler)) {
	methods := map[string][]string{} // by path
	for _, rt := range s.routes() {
		pattern := strings.TrimSpace(rt.method + " " + s.opts.ContextPath + rt.path)
		v := versionOf(rt.path)
		s.mux.Handle(pattern, s.instrument(pattern, v, s.api(v, rt)))
		methods[rt.path] = append(methods[rt.path], rt.method)
		if rt.as == probe && s.opts.ContextPath != "" {
			bare := rt.method + " " + rt.path
			s.mux.Handle(bare, s.instrument(bare, v, s.api(v, rt)))
		}
		if rt.as == owner {
			s.forwardable[rt.method+" "+rt.path] = true
		}
	}
	for _, path := range slices.Sorted(maps.Keys(methods)) {
		if !strings.HasPrefix(path, "/v1/ns/") && !slices.Contains(methods[path], "") {
			plain(s.opts.ContextPath+path, wrongMethod(methods[path]))
		}
	}
	plain(s.opts.ContextPath+"/v1/ns/", s.noSuchAPI)
	for _, path := range []string{"/v1/cs", "/v2/cs", "/v3/client/cs", "/v3/admin/cs"} {
		root := s.opts.ContextPath + path
		h := s.instrument(root, versionOf(path+"/"), noConfig)
		s.mux.Handle(root, h)
		s.mux.Handle(root+"/", h)
	}
}

// api puts before a handler what all of the Nacos API have in common.
func (s *Server) api(v version, rt route) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if s.opts.Awake != nil {
			s.opts.Awake()
		}
		if ready, reason := s.ready(); !ready && rt.as != always && rt.as != probe && !isForwarded(r) {
			return errNotReady(reason)
		}
		if strings.HasPrefix(rt.path, "/v1/ns/") {
			if err := s.gate(r); err != nil {
				return err
			}
		}
		if s.crossOrigin.Check(r) != nil { // SDKs say nothing that it looks at
			return errOtherSite
		}
		p, err := readParams(w, r, int64(s.opts.MaxRequestBytes))
		if err != nil {
			return err
		}
		return rt.handle(&call{params: p, version: v, w: w, r: r})
	}
}

// noSuchAPI answers unknown paths and wrong methods below /v1/ns.
func (s *Server) noSuchAPI(_ http.ResponseWriter, r *http.Request) error {
	if err := s.gate(r); err != nil {
		return err
	}
	if strings.HasSuffix(r.URL.Path, "/") { // golden scenarios 06, 20
		return errNotFound
	}
	return errNoAPI(r)
}

// wrongMethod answers the other methods of a path, except below /v1/ns (golden
// scenario 21).
func wrongMethod(methods []string) handler {
	allow := strings.Join(slices.Sorted(slices.Values(methods)), ", ")
	return func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Allow", allow)
		return errMethod(r)
	}
}
