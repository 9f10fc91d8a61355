package health

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/x509"
	"database/sql/driver"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/starling-registry/starling/pkg/registry"
)

// masterQuery is the command that Nacos offers first. With it, a server that
// can only be read is not healthy.
const masterQuery = "show global variables where variable_name='read_only'"

// mysql logs in and sends the command, if there is one. An instance is
// whatever somebody has registered, so its answers are not trusted: see
// [frames]. The settings never go through a data source name, where they could
// say more than what they are.
func (c *checker) mysql(conn net.Conn, addr string, ch *registry.Checker) (r result) {
	defer func() {
		if recover() != nil {
			r = result{failed, errNoMySQL.Error()}
		}
	}()
	limit := 2 * c.timeout
	f := &frames{Conn: conn, budget: maxLogin}
	conn.SetDeadline(time.Now().Add(limit))
	session, err := login(f, addr, ch)
	if err != nil {
		return c.ofMySQL("the login", limit, f, err)
	}
	defer session.Close()
	if ch.Command == "" {
		return result{passed, "logged in"}
	}
	f.budget, f.answers = maxAnswer, true
	conn.SetDeadline(time.Now().Add(limit))
	rows, err := session.(driver.QueryerContext).QueryContext(context.Background(), ch.Command, nil)
	if err != nil {
		return c.ofMySQL("the command", limit, f, err)
	}
	defer rows.Close() // reads the rest, within the limits
	if ch.Command != masterQuery {
		return result{passed, "the command succeeded"}
	}
	row := make([]driver.Value, len(rows.Columns()))
	switch err := rows.Next(row); {
	case errors.Is(err, io.EOF) || err == nil && len(row) < 2:
		return result{down, "the server does not say whether it is read-only"}
	case err != nil:
		return c.ofMySQL("the command", limit, f, err)
	}
	// MariaDB knows more kinds of read-only than ON.
	if v, _ := row[1].([]byte); !strings.EqualFold(string(v), "OFF") {
		return result{failed, "current node is slave!"}
	}
	return result{passed, "the server is the master"}
}

// login makes a session on a connection.
func login(f *frames, addr string, ch *registry.Checker) (driver.Conn, error) {
	if strings.ContainsRune(ch.User, 0) {
		return nil, errors.New("the user name has a zero byte")
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = ch.User, ch.Password, "tcp", addr
	cfg.Logger = &mysql.NopLogger{}
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) { return f, nil }
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	// The deadline of the connection ends it, not a context, which the driver
	// would watch with a goroutine.
	return connector.Connect(context.Background())
}

// ofMySQL is what an error of the driver says. The driver hides those of the
// network.
func (c *checker) ofMySQL(doing string, limit time.Duration, f *frames, err error) result {
	if said, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return result{down, said.Error()}
	}
	if f.err != nil {
		err = f.err
	}
	return c.of(doing, limit, err)
}

const (
	maxLogin  = 8 << 10  // of what is read for the login, in bytes
	maxAnswer = 64 << 10 // of what is read for the command
	maxKey    = 8192     // bits; to encrypt with a longer one would keep us busy
)

var (
	errTooMuch = errors.New("the answer is too long")
	errNoMySQL = errors.New("the answer is not that of a MySQL server")
)

// frames passes on the packets of a MySQL server that the driver can bear. It
// makes room for as many bytes as the head of a packet announces, and for as
// many columns as an answer announces, before it has seen them; and it trusts
// the lengths within packets. A panic in its login leaves a goroutine behind,
// so what it reads there is looked through; later ones are caught.
type frames struct {
	net.Conn
	budget  int   // bytes that may still be read
	answers bool  // packets are answers to a command; else they belong to the login
	greeted bool  // the first packet has been seen
	err     error // of the network, or what is wrong with the packets
	packet  []byte
}

func (f *frames) Read(b []byte) (int, error) {
	if len(f.packet) == 0 && f.err == nil {
		f.packet, f.err = f.next()
	}
	if f.err != nil {
		return 0, f.err
	}
	n := copy(b, f.packet)
	f.packet = f.packet[n:]
	return n, nil
}

func (f *frames) Write(b []byte) (int, error) {
	n, err := f.Conn.Write(b)
	if err != nil && f.err == nil {
		f.err = err
	}
	return n, err
}

// next reads a packet: three bytes with its length, a sequence number, and
// what it says.
func (f *frames) next() ([]byte, error) {
	packet := make([]byte, 4, 128)
	if _, err := io.ReadFull(f.Conn, packet); err != nil {
		return nil, err
	}
	length := int(packet[0]) | int(packet[1])<<8 | int(packet[2])<<16
	if f.budget -= len(packet) + length; f.budget < 0 {
		return nil, errTooMuch
	}
	packet = append(packet, make([]byte, length)...)
	says := packet[4:]
	if _, err := io.ReadFull(f.Conn, says); err != nil {
		return nil, err
	}
	ok := false
	switch {
	case length == 0:
	case f.answers:
		// Such a first byte begins a long number, of columns or of bytes in a
		// field. But a short 0xfe ends an answer.
		if says[0] == 0xfc || says[0] == 0xfd || says[0] == 0xfe && length >= 9 {
			return nil, errTooMuch
		}
		ok = true
	case says[0] == 0xff:
		ok = length >= 4 && (says[3] != '#' || length >= 9)
	case !f.greeted:
		ok = greeting(says)
	default:
		ok = authentication(says)
	}
	if !ok {
		return nil, errNoMySQL
	}
	f.greeted = true
	return packet, nil
}

// greeting: the version of the protocol, that of the server with a zero at the
// end, and 44 bytes or more of which the driver knows where they are.
func greeting(says []byte) bool {
	end := bytes.IndexByte(says, 0)
	return end > 0 && len(says) >= end+1+44
}

// authentication is a packet after the greeting.
func authentication(says []byte) bool {
	switch says[0] {
	case 0x00: // it succeeded; two short numbers and the state follow
		return len(says) >= 5 && says[1] < 0xfb && says[2] < 0xfb
	case 0x01: // a step of the method, or the server's key
		if len(says) <= 2 {
			return true
		}
		block, _ := pem.Decode(says[1:])
		if block == nil {
			return false
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		public, ok := key.(*rsa.PublicKey)
		return err == nil && ok && public.N.BitLen() <= maxKey
	case 0xfe: // another method, by name, and 20 random bytes or more
		end := bytes.IndexByte(says, 0)
		return end > 0 && len(says) >= end+1+20
	}
	return true // the driver refuses it
}
