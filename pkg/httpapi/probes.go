package httpapi

import (
	"net/http"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/nacos"
)

// liveness serves console/health/liveness and core/state/liveness: a process
// that can answer is alive.
func (s *Server) liveness(c *call) error {
	if c.version == v1 {
		writeText(c.w, c.r, http.StatusOK, "OK")
		return nil
	}
	return c.answer([]byte(`"ok"`))
}

// readiness serves console/health/readiness and core/state/readiness. In v2 and
// for v3's operators Nacos says in the body alone that a node is not ready
// (http-api §7.5, §8.3); its consoles of v1 and v3 answer with 500. One that an
// operator calls anything but up is not ready either (golden scenario 75).
func (s *Server) readiness(c *call) error {
	ready, reason := s.ready()
	switch {
	case ready && s.switches().Status() != nacos.StatusUp:
		return errSaidNotUp(c.version)
	case ready:
		return s.liveness(c)
	case c.version == v1:
		return errNotReadyV1(reason)
	}
	return errNotReadyInBody(http.StatusOK, reason)
}

// consoleReadiness serves the readiness of v3's console.
func (s *Server) consoleReadiness(c *call) error {
	if ready, reason := s.ready(); !ready {
		return errNotReadyInBody(http.StatusInternalServerError, reason)
	}
	if s.switches().Status() != nacos.StatusUp {
		return errNotReadyInBody(http.StatusInternalServerError, notInReadiness)
	}
	return s.liveness(c)
}

// actuatorHealth serves actuator/health of the framework that Nacos is made
// with.
func (s *Server) actuatorHealth(c *call) error {
	status, body := http.StatusOK, `{"status":"UP"}`
	if ready, _ := s.ready(); !ready {
		status, body = http.StatusServiceUnavailable, `{"status":"DOWN"}`
	}
	c.w.Header().Set("Content-Type", "application/vnd.spring-boot.actuator.v3+json")
	c.w.WriteHeader(status)
	_, _ = c.w.Write([]byte(body))
	return nil
}

// state serves server/state and core/state.
func (s *Server) state(c *call) error {
	m, err := s.self()
	if err != nil {
		return err
	}
	return c.answerJSON(nacos.State(m.Port, len(s.members()) == 1, m.Release))
}

// noText serves what a console would show people: there is nothing.
func (s *Server) noText(c *call) error { return c.rest([]byte(`""`)) }

func (s *Server) livez(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, []byte(`{"status":"alive"}`))
	return nil
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) error {
	if ready, reason := s.ready(); !ready {
		return &apiError{status: http.StatusServiceUnavailable, shape: native, text: api.CodeNotReady + ": " + reason,
			hint: "the node does not take requests of clients until this is over; they use another one"}
	}
	writeJSON(w, http.StatusOK, []byte(`{"status":"ready"}`))
	return nil
}

func (s *Server) ready() (bool, string) {
	if s.opts.Ready == nil {
		return true, ""
	}
	return s.opts.Ready()
}
