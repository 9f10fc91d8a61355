package httpapi

import (
	"context"
	"crypto/rand"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
)

// A User is an account: who may log in. There is no authorisation yet, so there
// is nothing else that it may do or not.
type User struct {
	Name     string
	Password []byte // a hash, see passwords
}

// Accounts are a table of the log of the cluster; what goes for [Durable] goes
// for them.
type Accounts interface {
	Users() []User // by name
	AnyUser() bool
	User(name string) (User, bool)
	// PutUser keeps one; with create there must be none of that name.
	PutUser(ctx context.Context, u User, create bool) error
	RemoveUser(ctx context.Context, name string) error
}

// adminName is the account that users/admin makes, and that stays.
const adminName = "nacos"

const maxUserName = 64 // characters

// userName reads a name that is to be given.
func (c *call) userName() (string, error) {
	name := c.get("username")
	switch {
	case name == "":
		return "", c.errMissingAccount("username")
	case utf8.RuneCountInString(name) > maxUserName || strings.ContainsFunc(name, unicode.IsControl) || strings.ContainsRune(name, utf8.RuneError):
		return "", errValue(errUserName)
	}
	return name, nil
}

// newPassword reads a password that is to be set; blanks are part of it.
func (c *call) newPassword(param string) (string, error) {
	password := c.params[param]
	switch {
	case nacos.Blank(password):
		return "", c.errMissingAccount(param)
	}
	return password, checkPassword(password)
}

// checkPassword bounds a password. Of one that came as something else than
// UTF-8 not all is known by now: others would do as well.
func checkPassword(password string) error {
	switch {
	case len(password) > maxPasswordSize:
		return errValue(errPasswordSize)
	case strings.ContainsRune(password, utf8.RuneError):
		return errValue(errPasswordText)
	}
	return nil
}

// putUser hashes and writes; of a name that is there already, with create, it
// returns Exists.
func (s *Server) putUser(c *call, name, password string, create bool) (RefusalCode, error) {
	hash, err := s.passwords.hash(c.r.Context(), peer(c.r), password)
	if err != nil {
		return 0, err
	}
	return s.durably(c, func(ctx context.Context, _ Durable) error {
		return s.opts.Accounts.PutUser(ctx, User{name, hash}, create)
	})
}

// told logs a change of the accounts: everybody who reaches the port can make
// one, so each is to be found.
func (s *Server) told(c *call, what, name string) {
	s.opts.Logger.Info(what, zap.String("username", name), zap.String("peer", c.r.RemoteAddr))
}

// createUser serves POST users and user.
func (s *Server) createUser(c *call) error {
	name, err := c.userName()
	if err != nil {
		return err
	}
	password, err := c.newPassword("password")
	if err != nil {
		return err
	}
	if _, exists := s.opts.Accounts.User(name); exists { // without the work of a hash
		return errUserExists(name)
	}
	refused, err := s.putUser(c, name, password, true)
	switch {
	case refused == Exists:
		return errUserExists(name)
	case err != nil:
		return err
	}
	s.told(c, "account made", name)
	return c.rest([]byte(`"create user ok!"`))
}

// createAdmin serves POST users/admin and user/admin: the first account, with
// the given password or one that is made up and told this once.
func (s *Server) createAdmin(c *call) error {
	password := c.params["password"]
	if nacos.Blank(password) {
		password = rand.Text()
	} else if err := checkPassword(password); err != nil {
		return err
	}
	if _, exists := s.opts.Accounts.User(adminName); exists {
		return c.errAdminExists()
	}
	refused, err := s.putUser(c, adminName, password, true)
	switch {
	case refused == Exists:
		return c.errAdminExists()
	case err != nil:
		return err
	}
	s.told(c, "account made", adminName)
	b := nacos.AppendString([]byte(`{"username":`), adminName)
	b = nacos.AppendString(append(b, `,"password":`...), password)
	return c.answer(append(b, '}'))
}

// updateUser serves PUT users and user: another password.
func (s *Server) updateUser(c *call) error {
	name, err := c.userName()
	if err != nil {
		return err
	}
	password, err := c.newPassword("newPassword")
	if err != nil {
		return err
	}
	if _, exists := s.opts.Accounts.User(name); !exists {
		return errUserUnknown(name)
	}
	if _, err := s.putUser(c, name, password, false); err != nil {
		return err
	}
	s.told(c, "password of an account changed", name)
	return c.rest([]byte(`"update user ok!"`))
}

// removeUser serves DELETE users and user. That there is none is no error.
func (s *Server) removeUser(c *call) error {
	name := c.get("username")
	switch {
	case name == "":
		return c.errMissingAccount("username")
	case name == adminName:
		return errAdminStays
	}
	if utf8.RuneCountInString(name) <= maxUserName {
		refused, err := s.durably(c, func(ctx context.Context, _ Durable) error { return s.opts.Accounts.RemoveUser(ctx, name) })
		if err != nil && refused != NotFound {
			return err
		}
		if err == nil {
			s.passwords.forget(name)
			s.told(c, "account removed", name)
		}
	}
	return c.rest([]byte(`"delete user ok!"`))
}

// users serves GET users and user/list: a page of them. What is kept of their
// passwords nobody is shown; Nacos shows the hash.
func (s *Server) users(c *call) error {
	matches, of := func(string) bool { return true }, c.get("username")
	switch search := c.get("search"); {
	case search != "" && search != "accurate" && search != "blur":
		return errValue(errSearch)
	case of == "":
	case search == "blur":
		matches = func(name string) bool { return like(name, of) }
	default:
		matches = func(name string) bool { return name == of }
	}
	var n [2]int
	for i, param := range []string{"pageNo", "pageSize"} {
		v := c.get(param)
		if v == "" {
			return c.errMissingAccount(param)
		}
		var err error
		if n[i], err = strconv.Atoi(v); err != nil {
			return errNumber(v)
		}
		if n[i] < 1 {
			return errPage(param, n[i])
		}
	}
	var all []User
	for _, u := range s.opts.Accounts.Users() {
		if matches(u.Name) {
			all = append(all, u)
		}
	}
	number, size := n[0], n[1]
	page := nacos.NewListPage(len(all), number, size)
	for _, u := range nacos.Page(all, number, size) {
		page.Items = append(page.Items, map[string]string{"username": u.Name, "password": ""})
	}
	return c.answerJSON(page)
}

// like reports whether a name has the pieces between the stars of a pattern, in
// their order; without a star it is to be anywhere in the name.
func like(name, pattern string) bool {
	pieces := strings.Split(pattern, "*")
	if len(pieces) == 1 {
		return strings.Contains(name, pattern)
	}
	first, last := pieces[0], pieces[len(pieces)-1]
	if !strings.HasPrefix(name, first) {
		return false
	}
	name = name[len(first):]
	for _, p := range pieces[1 : len(pieces)-1] {
		_, after, found := strings.Cut(name, p)
		if !found {
			return false
		}
		name = after
	}
	return strings.HasSuffix(name, last)
}

// userNames serves users/search and user/search: the names that contain a text.
func (s *Server) userNames(c *call) error {
	of := c.get("username")
	if of == "" {
		return c.errMissingAccount("username")
	}
	names := []string{}
	for _, u := range s.opts.Accounts.Users() {
		if strings.Contains(u.Name, of) {
			names = append(names, u.Name)
		}
	}
	return c.answerJSON(names)
}

// noRoles serves roles and permissions.
func (s *Server) noRoles(c *call) error {
	return c.refuse(http.StatusNotImplemented, "there are no roles and permissions: nothing is authorised yet, an account can log in and that is all")
}

const (
	errUserName     = nacos.ParamError("Param 'username' is illegal, it should have up to 64 characters of UTF-8, none of them a control character.")
	errPasswordSize = nacos.ParamError("Param 'password' is illegal, the param length should not exceed 1024.")
	errPasswordText = nacos.ParamError("Param 'password' is illegal, it should be UTF-8.")
	errSearch       = nacos.ParamError("Param 'search' is illegal, it should be accurate or blur.")
)
