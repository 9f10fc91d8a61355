package httpapi

import (
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
)

// profile serves /debug/pprof/ to the machine itself: profiles show memory
// and cost time.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) error {
	if !isLocal(r) {
		return errNotServed
	}
	switch r.URL.Path {
	case "/debug/pprof/cmdline":
		pprof.Cmdline(w, r)
	case "/debug/pprof/profile":
		pprof.Profile(w, r)
	case "/debug/pprof/symbol":
		pprof.Symbol(w, r)
	case "/debug/pprof/trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
	return nil
}

// isLocal reports whether a request came over the loopback interface and was
// not passed on by a proxy there.
func isLocal(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return local != nil && isLoopback(local.String()) && isLoopback(r.RemoteAddr)
}

func isLoopback(hostPort string) bool {
	a, err := netip.ParseAddrPort(hostPort)
	return err == nil && a.Addr().Unmap().IsLoopback()
}
