package compat

import (
	"path/filepath"
	"testing"

	"github.com/starling-registry/starling/test/compat/drivers"
)

// bare are the drivers without an SDK. They are no columns of the report, which is about SDKs: this
// is to show that they are clients like those.
func bare() []*sdk {
	const noList = "the client API of v3 has no such list"
	overHTTP := func(s *drivers.SDK) *sdk {
		return &sdk{
			SDK:    s,
			lacks:  map[string]string{"batchRegister": noBatch, "batchRemove": noBatch, "watchServices": noWatch},
			cannot: map[string]string{selectHealthy: alwaysWell, providerKilled: noConnection},
		}
	}
	v3 := overHTTP(suite.HTTP3("http3"))
	v3.lacks["services"], v3.lacks["protected"] = noList, noList
	v3.cannot["Cluster filter"] = "a list of v3 is that of one cluster, by default of DEFAULT"
	return []*sdk{
		overHTTP(suite.HTTP("http")),
		v3,
		{SDK: suite.GRPC("grpc"), lacks: map[string]string{"watchServices": noWatch}},
	}
}

// TestBare runs every scenario by clients without an SDK.
func TestBare(t *testing.T) {
	t.Parallel()
	dir := runDir(t)
	srv := startServer(t, serverBinary(t), filepath.Join(dir, "server"))
	for _, sdk := range bare() {
		t.Run(sdk.Name, func(t *testing.T) {
			prepare(t, sdk)
			t.Parallel()
			runScenarios(t, sdk, srv, filepath.Join(dir, sdk.Name))
		})
	}
}
