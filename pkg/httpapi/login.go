package httpapi

import (
	"strconv"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
)

// noAuthToken is what everybody gets who logs in; nothing looks at it. It is
// the token of a Nacos whose authorisation is off.
const noAuthToken = "AUTH_DISABLED"

// tokenTTL is how long clients may keep a token, in seconds; as in Nacos.
const tokenTTL = 18000

// login serves the logins of all generations of SDKs (http-api §6.3, §8.4).
// While there are no accounts any passes: an SDK that has one configured logs in
// before anything else, and the Python one fails every call if it cannot.
func (s *Server) login(c *call) error {
	name := c.get("username")
	if name == "" {
		return errRequired("username")
	}
	password, given := c.params["password"]
	if !given {
		return errRequired("password")
	}
	user, exists := s.opts.Accounts.User(name)
	if exists || s.opts.Accounts.AnyUser() {
		right := len(password) <= maxPasswordSize
		var err error
		if right {
			right, err = s.passwords.check(c.r.Context(), peer(c.r), name, user.Password, password)
		}
		if err != nil {
			return err
		}
		if !right {
			s.log.Info("login refused", zap.String("username", clip(name)), zap.String("peer", c.r.RemoteAddr))
			return c.errLogin()
		}
	} else {
		s.log.Debug("login; there are no accounts, so any passes", zap.String("username", clip(name)), zap.String("peer", c.r.RemoteAddr))
	}

	b := nacos.AppendString([]byte(`{"accessToken":`), noAuthToken)
	b = strconv.AppendInt(append(b, `,"tokenTtl":`...), tokenTTL, 10)
	b = nacos.AppendString(append(b, `,"globalAdmin":true,"username":`...), name)
	c.w.Header().Set("Authorization", "Bearer "+noAuthToken)
	return c.bare(append(b, '}'))
}
