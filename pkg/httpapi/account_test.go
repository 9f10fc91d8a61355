package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// has makes an account.
func (f *fixture) has(t *testing.T, name, password string) {
	t.Helper()
	hash, err := f.passwords.hash(t.Context(), "", password)
	if err != nil {
		t.Fatal(err)
	}
	f.tables.users[name] = User{name, hash}
}

func TestLoginOnceThereAreAccounts(t *testing.T) { // golden scenario 21
	f := newFixture(t)
	f.has(t, "nacos", "secret")
	f.has(t, "Jörg", " pass word ")
	login := func(call, form string, status int, says string) {
		t.Helper()
		method, target, _ := strings.Cut(call, " ")
		w := f.do(method, "/nacos"+target, form, "Content-Type: application/x-www-form-urlencoded")
		token := w.Header().Get("Authorization")
		if w.Code != status || (token == "Bearer AUTH_DISABLED") != (status == 200) || !strings.Contains(w.Body.String(), says) {
			t.Errorf("%s %s: %d %s, token %q", call, form, w.Code, w.Body, token)
		}
	}
	for range 2 { // the second time the right one is known
		login("POST /v1/auth/login?username=nacos&password=secret", "", 200, `"tokenTtl":18000`)
		login("POST /v1/auth/users/login?username=nacos", "password=secret", 200, "")
		login("POST /v3/auth/user/login", "username=nacos&password=secret", 200, "")
		login("POST /v3/auth/user/login", "username=J%C3%B6rg&password=+pass+word+", 200, "")
		login("POST /v3/auth/user/login", "username=J%C3%B6rg&password=pass+word", 403, "Access Denied")
		login("POST /v1/auth/login?username=nacos&password=wrong", "", 403, "unknown user!")
		login("POST /v1/auth/users/login?username=nobody", "password=secret", 403, "unknown user!")
		login("POST /v1/auth/users/login?username=nobody", "password=", 403, "unknown user!")
		login("POST /v3/auth/user/login", "username=nacos&password=wrong", 403, `"error":"Forbidden","message":"Access Denied"`)
		login("POST /v3/auth/user/login", "username=nobody&password=wrong", 403, `"error":"Forbidden","message":"Access Denied"`)
		login("POST /v3/auth/user/login", "username=nacos&password="+strings.Repeat("x", 2000), 403, "")
		login("POST /v3/auth/user/login", "", 400, "Required parameter 'username'")
	}
	f.has(t, "nacos", "changed")
	login("POST /v1/auth/login?username=nacos&password=secret", "", 403, "unknown user!")
	login("POST /v1/auth/login?username=nacos&password=changed", "", 200, "")
	delete(f.tables.users, "nacos") // on another node
	login("POST /v1/auth/login?username=nacos&password=changed", "", 403, "unknown user!")
	f.tables.users["odd"] = User{"odd", []byte("$2a$10$notours")}
	login("POST /v1/auth/login?username=odd&password=x", "", 500, "internal error")
	for _, l := range f.logs.All() {
		if s := fmt.Sprint(l.Message, l.ContextMap()); strings.Contains(s, "secret") || strings.Contains(s, "wrong") || strings.Contains(s, "changed") {
			t.Errorf("log line %s", s)
		}
	}
}

func TestUsers(t *testing.T) {
	const at = "/v1/auth/users"
	missing := func(call, param string) step {
		return step{call, "", "", 400, js, springError(400, "Bad Request", "Required parameter '"+param+"' is not present.", "/nacos"+strings.SplitN(strings.Fields(call)[1], "?", 2)[0])}
	}
	page := func(total, number, pages int, names ...string) string {
		items := []string{}
		for _, n := range names {
			items = append(items, fmt.Sprintf(`{"username":%q,"password":""}`, n))
		}
		return fmt.Sprintf(`{"totalCount":%d,"pageNumber":%d,"pagesAvailable":%d,"pageItems":[%s]}`, total, number, pages, strings.Join(items, ","))
	}
	f := newFixture(t)
	f.play(t, []step{
		get(at+"?pageNo=1&pageSize=10", page(0, 1, 0)),
		{"POST " + at, "username=anna&password=a", "", 200, js, restOf(`"create user ok!"`)},
		{"POST " + at + "?username=bob", "password=b", "", 200, js, restOf(`"create user ok!"`)},
		{"POST " + at, "username=anna&password=x", "", 400, text, "user 'anna' already exist!"},
		missing("POST "+at, "username"),
		missing("POST "+at+"?username=x", "password"),
		missing("POST "+at+"?username=x&password=%20", "password"),
		{"POST " + at, "username=" + strings.Repeat("x", 65) + "&password=x", "", 400, text, "Param 'username' is illegal, it should have up to 64 characters of UTF-8, none of them a control character."},
		{"POST " + at, "username=a%00b&password=x", "", 400, text, "Param 'username' is illegal, it should have up to 64 characters of UTF-8, none of them a control character."},
		{"POST " + at, "username=x&password=" + strings.Repeat("x", 1025), "", 400, text, "Param 'password' is illegal, the param length should not exceed 1024."},
		// %FF, and all else that is no UTF-8, would be the same password.
		{"POST " + at, "username=x&password=p%FF", "", 400, text, "Param 'password' is illegal, it should be UTF-8."},
		{"POST " + at, "username=x%E4&password=p", "", 400, text, "Param 'username' is illegal, it should have up to 64 characters of UTF-8, none of them a control character."},
		{"POST " + at + "/admin", "password=p%FF", "", 400, text, "Param 'password' is illegal, it should be UTF-8."},
		{"PUT " + at, "username=anna&newPassword=%FE", "", 400, text, "Param 'password' is illegal, it should be UTF-8."},
		get(at+"?pageNo=1&pageSize=10", page(2, 1, 1, "anna", "bob")),
		get(at+"?pageNo=2&pageSize=1&search=accurate", page(2, 2, 2, "bob")),
		get(at+"?pageNo=9&pageSize=1&search=accurate", page(2, 9, 2)),
		get(at+"?pageNo=1&pageSize=9&search=accurate&username=an", page(0, 1, 0)),
		get(at+"?pageNo=1&pageSize=9&search=accurate&username=anna", page(1, 1, 1, "anna")),
		get(at+"?pageNo=1&pageSize=9&search=blur&username=n", page(1, 1, 1, "anna")),
		get(at+"?pageNo=1&pageSize=9&search=blur&username=*b*", page(1, 1, 1, "bob")),
		{"GET " + at + "?pageNo=1&pageSize=9&search=x", "", "", 400, text, "Param 'search' is illegal, it should be accurate or blur."},
		missing("GET "+at, "pageNo"),
		missing("GET "+at+"?pageNo=1", "pageSize"),
		{"GET " + at + "?pageNo=x&pageSize=1", "", "", 400, text, `For input string: "x"`},
		{"GET " + at + "?pageNo=0&pageSize=1", "", "", 400, text, "Required parameter 'pageNo' should be positive integer, current is 0"},
		{"GET " + at + "/search?username=n", "", "", 200, js, `["anna"]`},
		{"GET " + at + "/search?username=x", "", "", 200, js, `[]`},
		missing("GET "+at+"/search", "username"),
		{"PUT " + at, "username=anna&newPassword=c", "", 200, js, restOf(`"update user ok!"`)},
		{"PUT " + at, "username=carl&newPassword=c", "", 400, text, "user carl not exist!"},
		missing("PUT "+at+"?username=anna", "newPassword"),
		{"POST /v1/auth/login", "username=anna&password=a", "", 403, text, "unknown user!"},
		{"POST /v1/auth/login", "username=anna&password=c", "", 200, js, `{"accessToken":"AUTH_DISABLED","tokenTtl":18000,"globalAdmin":true,"username":"anna"}`},
		{"DELETE " + at + "?username=anna", "", "", 200, js, restOf(`"delete user ok!"`)},
		{"DELETE " + at, "username=anna", "", 200, js, restOf(`"delete user ok!"`)},
		{"DELETE " + at + "?username=nacos", "", "", 400, text, "cannot delete admin: nacos"},
		missing("DELETE "+at, "username"),
		{"POST /v1/auth/login", "username=anna&password=c", "", 403, text, "unknown user!"},
		{"GET /v1/auth/roles?pageNo=1&pageSize=1&search=accurate", "", "", 501, js, restError(501, "there are no roles and permissions: nothing is authorised yet, an account can log in and that is all")},
		{"POST " + at + "/admin", "password=s3cret", "", 200, js, `{"username":"nacos","password":"s3cret"}`},
		{"POST " + at + "/admin", "password=x", "", 200, js, restError(409, "have admin user cannot use it")},
		{"POST " + at, "username=dora&password=d", "Sec-Fetch-Site: cross-site", 403, text, "a browser sent this from another site"},
	})
	if is := fmt.Sprint(f.tables.Users()); strings.Contains(is, "s3cret") || len(f.tables.Users()) != 2 {
		t.Errorf("kept: %s", is)
	}
	var lines strings.Builder
	for _, l := range f.logs.All() {
		if strings.Contains(l.Message, "account") {
			lines.WriteString(fmt.Sprintln(l.Level, l.Message, l.ContextMap()["username"]))
		}
	}
	if lines.String() != "info account made anna\ninfo account made bob\ninfo password of an account changed anna\ninfo account removed anna\ninfo account made nacos\n" {
		t.Errorf("log:\n%s", lines.String())
	}
	f.tables.broken = refused(NoLeader, "")
	for _, call := range []string{"POST /nacos" + at + "?username=x&password=x", "PUT /nacos" + at + "?username=bob&newPassword=x", "DELETE /nacos" + at + "?username=bob"} {
		method, target, _ := strings.Cut(call, " ")
		if w := f.do(method, target, ""); w.Code != 500 || !strings.Contains(w.Body.String(), "did not find the Leader node") {
			t.Errorf("%s: %d %s", call, w.Code, w.Body)
		}
	}
	f.tables.broken = refused(Exists, "another node knows")
	if w := f.do("POST", "/nacos"+at+"?username=x&password=x", ""); w.Code != 400 || !strings.Contains(w.Body.String(), "already exist") {
		t.Errorf("what only the log knows: %d %s", w.Code, w.Body)
	}
}

func TestUsersV3(t *testing.T) {
	const at = "/v3/auth/user"
	f := newFixture(t)
	w := f.do("POST", "/nacos"+at+"/admin", "")
	var made struct {
		Code int
		Data struct{ Username, Password string }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &made); err != nil || made.Code != 0 || made.Data.Username != "nacos" || len(made.Data.Password) < 20 {
		t.Fatalf("admin: %v %s", err, w.Body)
	}
	f.play(t, []step{
		{"POST " + at + "/login", "username=nacos&password=" + made.Data.Password, "", 200, js, `{"accessToken":"AUTH_DISABLED","tokenTtl":18000,"globalAdmin":true,"username":"nacos"}`},
		{"POST " + at + "/admin", "password=golden-pass", "", 200, js, `{"code":409,"message":"have admin user cannot use it.","data":null}`},
		{"POST " + at, "username=anna&password=a", "", 200, js, result(0, "success", `"create user ok!"`)},
		failed("POST "+at, "username=anna&password=a", 20002, "parameter validate error", "user 'anna' already exist!"),
		failed("POST "+at, "password=a", 10000, "parameter missing", "Required parameter 'username' type String is not present"),
		{"PUT " + at, "username=anna&newPassword=b", "", 200, js, result(0, "success", `"update user ok!"`)},
		failed("PUT "+at, "username=x&newPassword=b", 20002, "parameter validate error", "user x not exist!"),
		get(at+"/list?pageNo=1&pageSize=10&search=blur&username=a*", result(0, "success", `{"totalCount":1,"pageNumber":1,"pagesAvailable":1,"pageItems":[{"username":"anna","password":""}]}`)),
		failed("GET "+at+"/list?pageNo=1", "", 10000, "parameter missing", "Required parameter 'pageSize' type String is not present"),
		get(at+"/search?username=na", result(0, "success", `["anna","nacos"]`)),
		failed("DELETE "+at+"?username=nacos", "", 20002, "parameter validate error", "cannot delete admin: nacos"),
		{"DELETE " + at + "?username=anna", "", "", 200, js, result(0, "success", `"delete user ok!"`)},
		{"POST /v3/auth/role", "role=x&username=y", "", 501, js, result(30000, "server error", `"there are no roles and permissions: nothing is authorised yet, an account can log in and that is all"`)},
		{"PATCH " + at, "", "", 405, js, springError(405, "Method Not Allowed", "Method 'PATCH' is not supported.", "/nacos"+at)},
	})
}

func TestLike(t *testing.T) {
	for _, c := range []struct {
		name, pattern string
		want          bool
	}{
		{"nacos", "ac", true}, {"nacos", "ca", false}, {"nacos", "*", true}, {"nacos", "n*s", true}, {"nacos", "n*o", false}, {"nacos", "*acos", true},
		{"nacos", "nacos*nacos", false}, {"nacos", "*a*o*", true}, {"nacos", "*o*a*", false}, {"aba", "a*a", true}, {"a", "a*a", false},
	} {
		if is := like(c.name, c.pattern); is != c.want {
			t.Errorf("%s like %s: %t", c.name, c.pattern, is)
		}
	}
}

func TestPasswordHash(t *testing.T) {
	p := newPasswords()
	p.rounds = 10
	a, _ := p.hash(t.Context(), "", "x")
	b, err := p.hash(t.Context(), "", "x")
	if err != nil || bytes.Equal(a, b) || !bytes.HasPrefix(a, []byte("pbkdf2-sha256$10$")) {
		t.Errorf("%v: %s, %s", err, a, b)
	}
	p.rounds = 20 // of a later release
	if right, err := p.check(t.Context(), "", "u", a, "x"); err != nil || !right {
		t.Errorf("the parameters are in what is kept: %t, %v", right, err)
	}
	for _, stored := range []string{"", "x", "pbkdf2-sha256$0$AAAA$AAAA", "pbkdf2-sha256$999999999$AAAA$AAAA", "pbkdf2-sha256$x$AAAA$AAAA", "pbkdf2-sha256$10$?$AAAA", "pbkdf2-sha1$10$AAAA$AAAA"} {
		if right, err := p.check(t.Context(), "", "u", []byte(stored), "x"); err == nil || right {
			t.Errorf("%q: %t, %v", stored, right, err)
		}
	}
}

// Only so many hashes are made at a time, so many wait, and none for long. A
// password that was right before does not wait.
func TestPasswordsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords()
		p.rounds, p.slots = 10, make(chan struct{}, 1)
		stored, _ := p.hash(t.Context(), "", "right")
		if right, err := p.check(t.Context(), "", "u", stored, "right"); !right || err != nil {
			t.Fatal(right, err)
		}
		p.slots <- struct{}{} // one takes long
		busy := make(chan error, maxPasswords+1)
		for n := range maxPasswords {
			go func() {
				_, err := p.check(t.Context(), fmt.Sprint("10.0.0.", n%20), "u", stored, fmt.Sprint("wrong", n))
				busy <- err
			}()
		}
		synctest.Wait()
		if _, err := p.check(t.Context(), "", "u", stored, "wrong"); !errors.Is(err, errPasswords) {
			t.Errorf("one too many: %v", err)
		}
		if right, err := p.check(t.Context(), "", "u", stored, "right"); !right || err != nil {
			t.Errorf("a known one: %t, %v", right, err)
		}
		start := time.Now()
		for range maxPasswords {
			if err := <-busy; !errors.Is(err, errPasswords) {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != passwordWait {
			t.Errorf("they wait for %s", took)
		}
		// An unknown user takes as long.
		start = time.Now()
		if _, err := p.check(t.Context(), "", "nobody", nil, "x"); !errors.Is(err, errPasswords) || time.Since(start) != passwordWait {
			t.Errorf("an unknown user: %v after %s", err, time.Since(start))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.hash(ctx, "", "x"); !errors.Is(err, errPasswords) {
			t.Errorf("a client that has gone: %v", err)
		}
		<-p.slots
		if right, err := p.check(t.Context(), "", "u", stored, "wrong"); right || err != nil {
			t.Errorf("afterwards: %t, %v", right, err)
		}
	})
}

// A flood from one address leaves room for the others, and those who ask the
// same need one hash.
func TestPasswordFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords()
		p.rounds, p.slots = 10, make(chan struct{}, 1)
		stored, _ := p.hash(t.Context(), "", "right")
		p.slots <- struct{}{} // one takes long
		for n := range 1000 {
			go func() { _, _ = p.check(t.Context(), "evil", "u", stored, fmt.Sprint("guess", n)) }()
		}
		synctest.Wait()
		clients := make(chan error)
		for range 1000 { // behind one address
			go func() {
				right, err := p.check(t.Context(), "nat", "u", stored, "right")
				if err == nil && !right {
					err = errors.New("refused")
				}
				clients <- err
			}()
		}
		for range 500 {
			go func() {
				right, err := p.check(t.Context(), "nat", "u", stored, "old one")
				if err == nil && right {
					err = errors.New("let in")
				}
				clients <- err
			}()
		}
		synctest.Wait()
		if _, err := p.check(t.Context(), "evil", "u", stored, "one more"); !errors.Is(err, errPasswords) {
			t.Errorf("of the address of the flood: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.check(ctx, "nat", "u", stored, "right"); !errors.Is(err, errPasswords) {
			t.Errorf("one who has gone: %v", err)
		}
		synctest.Wait()
		if n := len(p.queue); n != maxPasswordsOf+2 {
			t.Errorf("%d wait for their turn", n)
		}
		<-p.slots
		for range 1500 {
			if err := <-clients; err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(p.asking)+len(p.checks)+len(p.queue) != 0 {
			t.Errorf("left: %v, %v, %d", p.asking, p.checks, len(p.queue))
		}
	})
}

func BenchmarkPasswordHash(b *testing.B) {
	for b.Loop() {
		passwordHash("a password", passwordRounds, make([]byte, 16))
	}
}
