package compat

import "github.com/starling-registry/starling/test/compat/drivers"

// An sdk is one SDK in one version, and what it cannot do.
type sdk struct {
	// Its name stands in COMPAT_SDKS, in sub-tests and in service names, its title in the report.
	*drivers.SDK
	// notes say, for a scenario, what the SDK cannot do and what its driver does instead.
	notes map[string]string
	// lacks says why the SDK does not have an operation. Its driver finds out too that it has not.
	lacks map[string]string
	// cannot says why a scenario is out of reach of the SDK although it has the operations.
	cannot map[string]string
	// What the SDK says when a server refuses a persistent instance, or an ephemeral one, and why.
	// Empty: the server's words.
	refusesPersistent, refusesEphemeral string
	// fullRun keeps an SDK out of the short run, that of the newest versions.
	fullRun bool
}

// excuse says what the report shows for a scenario that is not run, and why not.
func (s *sdk) excuse(sc scenario) (cell, reason string) {
	if sc.name == beatsOnThreeNodes && s.Polls == 0 {
		return notOffered, "the SDK sends no beats: its connection keeps its instances. What becomes of those when nodes die is tested in deploy/chaos"
	}
	if reason := s.lacks[sc.needs]; reason != "" {
		return notOffered, reason
	}
	if reason := s.cannot[sc.name]; reason != "" {
		return notPossible, reason
	}
	return "", ""
}

// suite is this folder, in which go test starts.
const suite drivers.Place = "."

// sdks are the SDKs in the order of the report's columns: of each the newest version that could be
// fetched when the list was written, then older ones.
func sdks() []*sdk {
	return []*sdk{
		goSDK("go", suite.NewestGo()),
		older(goSDK("go-2.2.7", "v2.2.7")),
		older(goSDK("go-2.2.2", "v2.2.2")),
		javaSDK("java3", drivers.Java3),
		javaSDK("java2", drivers.Java2),
		older(javaSDK("java-2.2.4", "2.2.4")),
		older(javaSDK("java-2.0.4", "2.0.4")),
		pythonSDK("python", drivers.Python),
		older(pythonSDK("python-2.0.11", "2.0.11")),
		nodeSDK("node", suite.NewestNode()),
		go1SDK("go1", suite.NewestGo1()),
		java1SDK("java1", drivers.Java1),
		older(java1SDK("java-1.4.2", "1.4.2")),
		python1SDK("python1", drivers.Python1),
		older(python1SDK("python-0.1.12", "0.1.12")),
	}
}

func older(s *sdk) *sdk { s.fullRun = true; return s }

const noWatch = "the SDK has no fuzzy watch"

const noThreshold = "the SDK does not tell that the threshold is reached"

func goSDK(name, version string) *sdk {
	return &sdk{
		SDK: suite.Go(name, version),
		notes: map[string]string{
			batchRegister: "the SDK has no call that removes members of a batch; the remaining instances are registered as a new batch, which replaces it",
			otherKind:     "over HTTP, the way of persistent instances, the SDK passes on the status of a refusal and not the reason",
		},
		lacks:             map[string]string{"watchServices": noWatch},
		refusesPersistent: "request return error code 400",
	}
}

const (
	noUpdate     = "the naming client has no update call; registering the instance again changes it"
	noUpdateCall = "the SDK has no update call; registering the instance again changes it"
)

func javaSDK(name, version string) *sdk {
	s := &sdk{
		SDK: suite.Java(name, version),
		notes: map[string]string{
			metadataChange:   noUpdate,
			persistentChange: noUpdate,
		},
		lacks: map[string]string{"protected": noThreshold},
	}
	if version < "3" {
		s.lacks["watchServices"] = "the SDK has no fuzzy watch before 3.0"
	} else {
		s.notes[watchGroup] = "the SDK's calls for all services of a group, `fuzzyWatch(group, …)`, report the services that are there and then nothing more: they ask for the names `.*`, which the SDK itself takes for those that begin with a dot when a change comes; the driver asks for `*`"
		s.notes[watchPattern] = "two threads of the SDK tell a new watcher what there is, and now and then both tell of the same service; the driver passes over the second call"
		s.notes[watchRestarted] = "of a comparison after a reconnect the SDK applies what came and ignores what went, so that a service that went while the server was away is not missed"
	}
	if version < "2.1" {
		s.notes[otherKind] = "of an ephemeral instance that is refused the SDK says that the request failed, and the reason only in the cause of the exception"
		s.refusesEphemeral = "Request nacos server failed"
		s.cannot = map[string]string{
			subscribe:  "the SDK has group and service the wrong way round when it unsubscribes, so that it goes on being told of changes, and then does not call a listener that is added again",
			namespaces: "the SDK calls a listener for what any client of the process hears, of whatever namespace",
		}
	}
	if version < "2.1.1" {
		s.lacks["batchRegister"] = "the SDK has no batch registration before 2.1.1"
		s.lacks["batchRemove"] = s.lacks["batchRegister"]
	}
	return s
}

func pythonSDK(name, version string) *sdk {
	s := &sdk{
		SDK: suite.Python(name, version),
		notes: map[string]string{
			selectHealthy:   "the SDK has no call that picks one instance; the driver takes one of its list of healthy instances",
			serverRestarted: redoNote,
			serverKilled:    redoNote,
			batchRestarted:  redoNote,
			editRestarted:   redoNote,
		},
		lacks: map[string]string{"watchServices": noWatch},
	}
	if version < "3" {
		const blind = "the SDK does not notice that the server was away for less than five seconds, the pause between its health checks, which take the answer that the server does not know the connection for a good one; it connects again with its next request"
		s.cannot = map[string]string{serverRestarted: blind, serverKilled: blind, batchRestarted: blind, editRestarted: blind}
	}
	return s
}

// What rules scenarios out for all SDKs that speak HTTP.
const (
	noConnection = "the SDK has no connection that could end; its instances become unhealthy 15 seconds after the last beat and go after 30"
	alwaysWell   = "the SDK registers no instance that stays unhealthy: a beat makes it healthy"
	noBatch      = "the SDK has no batch registration"
)

func nodeSDK(name, version string) *sdk {
	return &sdk{
		SDK: suite.Node(name, version),
		notes: map[string]string{
			metadataChange:   noUpdateCall,
			persistentChange: noUpdateCall,
			otherKind:        "the SDK says that all servers were tried and writes the reason to its log",
		},
		refusesPersistent: "after all servers",
		refusesEphemeral:  "after all servers",
		lacks: map[string]string{
			"batchRegister": noBatch,
			"batchRemove":   noBatch,
			"protected":     noThreshold,
			"services":      "the SDK has no call that lists services",
			"watchServices": noWatch,
		},
		cannot: map[string]string{
			deregister:     "the SDK passes over an empty list, so it keeps the last instance of a service",
			selectHealthy:  alwaysWell + ", and weight 0 becomes 1",
			providerKilled: noConnection,
		},
	}
}

func go1SDK(name, version string) *sdk {
	return &sdk{
		SDK: suite.Go1(name, version),
		notes: map[string]string{
			subscribe:  "the SDK tells a new listener twice what there is; the driver passes over the second call",
			persistent: "the SDK does not tell a listener whether an instance is ephemeral; the driver takes that from the SDK's list",
			otherKind:  "the SDK passes on the status of a refusal and not the reason",
		},
		refusesPersistent: "request return error code 400",
		refusesEphemeral:  "request return error code 400",
		lacks: map[string]string{
			"batchRegister": noBatch,
			"batchRemove":   noBatch,
			"protected":     noThreshold,
			"watchServices": noWatch,
		},
		cannot: map[string]string{
			selectHealthy:  alwaysWell,
			providerKilled: noConnection,
		},
	}
}

func java1SDK(name, version string) *sdk {
	s := &sdk{
		SDK: suite.Java1(name, version),
		notes: map[string]string{
			metadataChange:   noUpdate,
			persistentChange: noUpdate,
		},
		lacks: map[string]string{
			"batchRegister": noBatch,
			"batchRemove":   noBatch,
			"protected":     noThreshold,
			"watchServices": noWatch,
		},
		cannot: map[string]string{
			selectHealthy:  alwaysWell,
			providerKilled: noConnection,
		},
	}
	if version < "1.4.3" {
		s.cannot[subscribe] = "the SDK calls a listener for what any client of the process hears, and one that is added again only after a change"
		s.cannot[namespaces] = "the SDK calls a listener for what any client of the process hears, of whatever namespace"
	}
	return s
}

func python1SDK(name, version string) *sdk {
	s := &sdk{
		SDK: suite.Python1(name, version),
		notes: map[string]string{
			subscribe: "the SDK tells a listener of one instance at a time, and of what is there when it is added not at all; the driver puts the list together",
			otherKind: "the SDK passes on the status of a refusal and not the reason",
		},
		refusesPersistent: "Request Error, code is 400",
		refusesEphemeral:  "Request Error, code is 400",
		lacks: map[string]string{
			"batchRegister": noBatch,
			"batchRemove":   noBatch,
			"services":      "the SDK has no call that lists services",
			"watchServices": noWatch,
		},
		cannot: map[string]string{
			selectHealthy:  alwaysWell,
			providerKilled: noConnection,
		},
	}
	const timer = "a subscription of the SDK ends with the first question that fails; the driver tells the SDK's timer to go on"
	for _, scenario := range []string{serverRestarted, serverKilled, editRestarted} {
		s.notes[scenario] = timer
	}
	if version < "1" {
		s.notes[quiet] = "the SDK sends no beats by itself before 1.0; the driver does, as its applications have to"
	}
	return s
}

const redoNote = "the SDK repeats registrations and subscriptions only every 30 seconds, so instances come back up to half a minute after the server"
