package health

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// A fakeMySQL speaks as much of the protocol as a check needs.
type fakeMySQL struct {
	method   string // of authentication
	user     string
	password string
	key      any // for caching_sha2_password, public
	private  *rsa.PrivateKey
	answer   func(command string) [][]byte // packets
	commands chan string
}

var random = []byte("abcdefghijklmnopqrst")

const (
	protocol41, secureConn, pluginAuth, deprecateEOF, mysqlFlag = 1 << 9, 1 << 15, 1 << 19, 1 << 24, 1
)

func packet(seq int, says []byte) []byte {
	n := len(says)
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(seq)}, says...)
}

func greet(method string, second []byte) []byte {
	flags := uint32(protocol41 | secureConn | pluginAuth | mysqlFlag)
	b := append([]byte{10}, "8.0.99-fake\x00\x01\x02\x03\x04"...)
	b = append(b, random[:8]...)
	b = append(b, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(flags))
	b = append(b, 45, 2, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(flags>>16))
	b = append(b, 21)
	b = append(b, make([]byte, 10)...)
	b = append(b, second...)
	b = append(b, 0)
	return append(append(b, method...), 0)
}

func okay() []byte { return []byte{0, 0, 0, 2, 0, 0, 0} }
func mistake(code int, text string) []byte {
	return append([]byte{0xff, byte(code), byte(code >> 8)}, "#28000"+text...)
}

func lenenc(fields ...string) (b []byte) {
	for _, f := range fields {
		b = append(append(b, byte(len(f))), f...)
	}
	return b
}

// result is an answer of text columns.
func answer(columns []string, rows ...[]string) (packets [][]byte) {
	packets = append(packets, []byte{byte(len(columns))})
	for _, c := range columns {
		b := lenenc("def", "", "", "", c, "")
		b = append(b, 0x0c, 45, 0, 0, 1, 0, 0, 0xfd, 0, 0, 0, 0, 0)
		packets = append(packets, b)
	}
	end := []byte{0xfe, 0, 0, 2, 0}
	packets = append(packets, end)
	for _, r := range rows {
		packets = append(packets, lenenc(r...))
	}
	return append(packets, end)
}

func receive(c net.Conn) (seq int, says []byte, err error) {
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return 0, nil, err
	}
	says = make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
	_, err = io.ReadFull(c, says)
	return int(head[3]), says, err
}

func (f *fakeMySQL) serve(c net.Conn) {
	c.Write(packet(0, greet(f.method, random[8:])))
	seq, says, err := receive(c)
	if err != nil {
		return
	}
	says = says[32:]
	name, says, _ := bytes.Cut(says, []byte{0})
	proof := says[1 : 1+says[0]]
	good := string(name) == f.user
	switch f.method {
	case "mysql_native_password":
		good = good && bytes.Equal(proof, native(f.password))
	case "caching_sha2_password":
		c.Write(packet(seq+1, []byte{1, 4})) // the long way
		if seq, _, err = receive(c); err != nil {
			return
		}
		der, err := x509.MarshalPKIXPublicKey(f.key)
		if err != nil {
			panic(err)
		}
		c.Write(packet(seq+1, append([]byte{1}, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})...)))
		if seq, says, err = receive(c); err != nil {
			return
		}
		plain, err := rsa.DecryptOAEP(sha1.New(), nil, f.private, says, nil)
		for i := range plain {
			plain[i] ^= random[i%len(random)]
		}
		good = good && err == nil && string(plain) == f.password+"\x00"
	}
	if !good {
		c.Write(packet(seq+1, mistake(1045, "Access denied for user")))
		return
	}
	c.Write(packet(seq+1, okay()))
	for {
		_, says, err := receive(c)
		if err != nil || len(says) == 0 || says[0] == 1 { // COM_QUIT
			if f.commands != nil {
				f.commands <- map[bool]string{true: "quit", false: "end"}[err == nil]
			}
			return
		}
		if f.commands != nil {
			f.commands <- string(says[1:])
		}
		for i, p := range f.answer(string(says[1:])) {
			if _, err := c.Write(packet(i+1, p)); err != nil {
				return
			}
		}
	}
}

func native(password string) []byte {
	one := sha1.Sum([]byte(password))
	two := sha1.Sum(one[:])
	three := sha1.Sum(append(bytes.Clone(random), two[:]...))
	for i := range three {
		three[i] ^= one[i]
	}
	return three[:]
}

func TestMySQL(t *testing.T) {
	noLeaks(t)
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	one := func(string) [][]byte { return answer([]string{"1"}, []string{"1"}) }
	says := func(value string) func(string) [][]byte {
		return func(string) [][]byte { return answer([]string{"Variable_name", "Value"}, []string{"read_only", value}) }
	}
	for _, c := range []struct {
		name    string
		server  fakeMySQL
		command string
		want    outcome
		reason  string
	}{
		{"no command", fakeMySQL{}, "", passed, "mysql: logged in"},
		{"a command", fakeMySQL{answer: one}, "select 1", passed, "mysql: the command succeeded"},
		{"one without an answer", fakeMySQL{answer: func(string) [][]byte { return [][]byte{okay()} }}, "set @a=1", passed, ""},
		{"a wrong password", fakeMySQL{password: "other"}, "", down, "Error 1045 (28000): Access denied"},
		{"a wrong user", fakeMySQL{user: "other"}, "", down, "1045"},
		{"a command that fails", fakeMySQL{answer: func(string) [][]byte { return [][]byte{mistake(1146, "no such table")} }}, "select 1", down, "no such table"},
		{"the master", fakeMySQL{answer: says("OFF")}, masterQuery, passed, "master"},
		{"a slave", fakeMySQL{answer: says("ON")}, masterQuery, failed, "mysql: current node is slave!"},
		{"it does not say", fakeMySQL{answer: func(string) [][]byte { return answer([]string{"Variable_name", "Value"}) }}, masterQuery, down, "read-only"},
		{"the method of MySQL 8", fakeMySQL{method: "caching_sha2_password", key: &private.PublicKey, private: private}, "", passed, ""},
		{"a long answer", fakeMySQL{answer: func(string) [][]byte {
			rows := make([][]string, 5000)
			for i := range rows {
				rows[i] = []string{strings.Repeat("x", 200)}
			}
			return answer([]string{"a"}, rows...)
		}}, "select * from t", passed, ""},
		{"a file of ours is asked for", fakeMySQL{answer: func(string) [][]byte { return [][]byte{append([]byte{0xfb}, "/etc/passwd"...)} }}, "select 1", failed, ""},
		{"too many columns", fakeMySQL{answer: func(string) [][]byte { return [][]byte{{0xfe, 0, 0, 0, 0, 4, 0, 0, 0}} }}, "select 1", failed, "too long"},
		{"more columns than follow", fakeMySQL{answer: func(string) [][]byte { return [][]byte{{200}, {0xfe, 0, 0, 2, 0}} }}, "select 1", failed, ""},
		{"a packet of nonsense", fakeMySQL{answer: func(string) [][]byte { return [][]byte{{1}, {9}} }}, "select 1", failed, ""},
		{"another kind of key", fakeMySQL{method: "caching_sha2_password", key: otherKey(t)}, "", failed, "not that of a MySQL server"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.server
			if s.method == "" {
				s.method = "mysql_native_password"
			}
			if s.user == "" {
				s.user = "check"
			}
			if s.password == "" {
				s.password = "se:cr@t/)?allowAllFiles=true"
			}
			ch := registry.Checker{Type: registry.CheckMySQL, User: "check", Password: "se:cr@t/)?allowAllFiles=true", Command: c.command}
			is := network(5*time.Second).check(t.Context(), serve(t, s.serve), cluster(ch))
			expect(t, is, c.want, c.reason)
			if strings.Contains(is.reason, ch.Password) {
				t.Error("the reason shows the password")
			}
		})
	}
}

func otherKey(t *testing.T) any {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k.Public()
}

// A session ends as the protocol wants it: servers count those that do not.
func TestMySQLQuits(t *testing.T) {
	s := fakeMySQL{method: "mysql_native_password", user: "u", password: "p", commands: make(chan string, 4),
		answer: func(string) [][]byte { return answer([]string{"1"}, []string{"1"}) }}
	k := serve(t, s.serve)
	ch := registry.Checker{Type: registry.CheckMySQL, User: "u", Password: "p", Command: "select 1"}
	if is := network(5*time.Second).check(t.Context(), k, cluster(ch)); is.outcome != passed {
		t.Fatal(is)
	}
	if a, b := <-s.commands, <-s.commands; a != "select 1" || b != "quit" {
		t.Errorf("the server gets %q, %q", a, b)
	}
}

func TestMySQLServersThatAreNone(t *testing.T) {
	noLeaks(t)
	long := packet(0, make([]byte, maxLogin+1))
	for _, c := range []struct {
		name    string
		answer  []byte
		timeout time.Duration
		want    outcome
		reason  string
	}{
		{"silence", nil, 50 * time.Millisecond, timedOut, "mysql: the login took longer than 100ms"},
		{"too many connections", packet(0, append([]byte{0xff, 0x10, 0x04}, "Too many connections"...)), 5 * time.Second, down, "Error 1040: Too many connections"},
		{"half an error", packet(0, []byte{0xff, 0x10, 0x04, '#', 1}), 5 * time.Second, failed, "not that of a MySQL server"},
		{"a huge packet", []byte{0xff, 0xff, 0xff, 0}, 5 * time.Second, failed, "too long"},
		{"a long packet", long, 5 * time.Second, failed, "too long"},
		{"an empty packet", packet(0, nil), 5 * time.Second, failed, "not that of a MySQL server"},
		{"half a greeting", packet(0, greet("mysql_native_password", random[8:])[:30]), 5 * time.Second, failed, "not that of a MySQL server"},
		{"an old greeting", packet(0, append([]byte{9}, greet("mysql_native_password", random[8:])[1:]...)), 5 * time.Second, failed, "unsupported protocol version"},
		{"HTTP", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), 5 * time.Second, failed, "too long"},
	} {
		k := serve(t, func(conn net.Conn) {
			conn.Write(c.answer)
			io.Copy(io.Discard, conn)
		})
		is := network(c.timeout).check(t.Context(), k, cluster(registry.Checker{Type: registry.CheckMySQL, User: "u"}))
		if is.outcome != c.want || !strings.Contains(is.reason, c.reason) {
			t.Errorf("%s: %v, %q; want %v, %q", c.name, is.outcome, is.reason, c.want, c.reason)
		}
	}
	k := serve(t, func(conn net.Conn) {})
	expect(t, network(5*time.Second).check(t.Context(), k, cluster(registry.Checker{Type: registry.CheckMySQL})), failed, "")
}

// A script is a connection whose other side says what it says, whatever it is
// sent.
type script struct {
	net.Conn
	bytes.Reader
}

func (s *script) Read(b []byte) (int, error)       { return s.Reader.Read(b) }
func (s *script) Write(b []byte) (int, error)      { return len(b), nil }
func (s *script) Close() error                     { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// Whatever a server says, the login does not panic: a goroutine of the driver
// would stay behind.
func FuzzMySQLLogin(f *testing.F) {
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		f.Fatal(err)
	}
	public := append([]byte{1}, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})...)
	for _, method := range []string{"mysql_native_password", "caching_sha2_password", "sha256_password", "client_ed25519", "mysql_old_password", "mysql_clear_password", "dialog", ""} {
		g := packet(0, greet(method, random[8:]))
		sum := sha256.Sum256([]byte(method))
		change := append([]byte{0xfe}, fmt.Sprint(method, "\x00", string(sum[:]))...)
		f.Add(append(bytes.Clone(g), packet(2, okay())...))
		f.Add(append(bytes.Clone(g), packet(2, mistake(1045, "no"))...))
		f.Add(append(append(bytes.Clone(g), packet(2, change)...), packet(4, okay())...))
		f.Add(append(append(append(bytes.Clone(g), packet(2, []byte{1, 4})...), packet(4, public)...), packet(6, okay())...))
		f.Add(append(append(bytes.Clone(g), packet(2, []byte{1, 3})...), packet(3, okay())...))
		f.Add(append(bytes.Clone(g), packet(2, []byte{0xfe})...))
	}
	f.Fuzz(func(t *testing.T, says []byte) {
		s := &script{}
		s.Reset(says)
		session, err := login(&frames{Conn: s, budget: maxLogin}, "10.0.0.1:3306", &registry.Checker{User: "u", Password: "p"})
		if err == nil {
			session.Close()
		}
	})
}

// The same for the whole check: here a panic is caught, and what is to be seen
// is that it takes no memory to speak of.
func FuzzMySQLAnswer(f *testing.F) {
	add := func(packets [][]byte) {
		var all []byte
		for i, p := range packets {
			all = append(all, packet(i+1, p)...)
		}
		f.Add(all)
	}
	add(answer([]string{"Variable_name", "Value"}, []string{"read_only", "OFF"}))
	add([][]byte{okay()})
	add([][]byte{mistake(1, "x")})
	add([][]byte{{0xfb, 'x'}})
	begin := append(packet(0, greet("mysql_native_password", random[8:])), packet(2, okay())...)
	f.Fuzz(func(t *testing.T, says []byte) {
		s := &script{}
		s.Reset(append(bytes.Clone(begin), says...))
		(&checker{nil, time.Second}).mysql(s, "10.0.0.1:3306", &registry.Checker{Command: masterQuery})
	})
}
