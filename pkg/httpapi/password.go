package httpapi

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// passwords hashes and checks them. A hash is slow on purpose, so that a stolen
// table is of little use; so only some are made at a time, and of those that
// wait there are not many: a flood of logins must not take the CPU.
type passwords struct {
	// constant
	rounds int
	slots  chan struct{} // one entry for each hash that is being made
	queue  chan struct{} // one for each that is, or waits for a slot
	key    []byte        // of known; never leaves the process

	mu sync.Mutex
	// known are the passwords that were right, by user: SDKs log in again and
	// again, and all at once after a restart.
	known map[string]knownPassword
}

type knownPassword struct {
	stored []byte // that it was right for
	sum    []byte // of the password, with key
}

const (
	passwordRounds  = 600_000 // about 0.15 s; what OWASP recommends for SHA-256
	maxPasswords    = 100     // under way and waiting
	passwordWait    = 5 * time.Second
	passwordFormat  = "pbkdf2-sha256$%d$%s$%s" // rounds, salt, hash
	maxPasswordSize = 1024                     // bytes
	maxKnown        = 10_000                   // with more they are learnt anew
)

func newPasswords() *passwords {
	p := &passwords{rounds: passwordRounds, slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/4)), queue: make(chan struct{}, maxPasswords),
		key: make([]byte, sha256.Size), known: map[string]knownPassword{}}
	rand.Read(p.key) // never fails
	return p
}

// slowly calls f when it is its turn. It fails when that does not come soon.
func (p *passwords) slowly(ctx context.Context, f func()) error {
	select {
	case p.queue <- struct{}{}:
		defer func() { <-p.queue }()
	default:
		return errPasswords
	}
	ctx, cancel := context.WithTimeout(ctx, passwordWait)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return errPasswords
	}
	f()
	return nil
}

// hash is what is kept of a password.
func (p *passwords) hash(ctx context.Context, password string) (stored []byte, err error) {
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	err = p.slowly(ctx, func() { stored = passwordHash(password, p.rounds, salt) })
	return stored, err
}

func passwordHash(password string, rounds int, salt []byte) []byte {
	sum, err := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	if err != nil {
		panic("BUG: " + err.Error()) // of sizes, which are constant
	}
	e := base64.RawStdEncoding
	return fmt.Appendf(nil, passwordFormat, rounds, e.EncodeToString(salt), e.EncodeToString(sum))
}

// check reports whether a password is that of a user. stored nil: there is no
// such user, which takes as long as a wrong password.
func (p *passwords) check(ctx context.Context, user string, stored []byte, password string) (right bool, err error) {
	mac := hmac.New(sha256.New, p.key)
	mac.Write([]byte(password))
	sum := mac.Sum(nil)
	p.mu.Lock()
	known, ok := p.known[user]
	p.mu.Unlock()
	if ok && bytes.Equal(known.stored, stored) && hmac.Equal(known.sum, sum) {
		return true, nil
	}
	rounds, salt := p.rounds, make([]byte, 16)
	if stored != nil {
		var ok bool
		if rounds, salt, ok = passwordParameters(stored); !ok {
			return false, fmt.Errorf("what is kept of the password of user %q was not made by this release", user)
		}
	}
	err = p.slowly(ctx, func() { right = hmac.Equal(passwordHash(password, rounds, salt), stored) })
	if right {
		p.mu.Lock()
		if len(p.known) >= maxKnown {
			clear(p.known)
		}
		p.known[user] = knownPassword{stored, sum}
		p.mu.Unlock()
	}
	return right, err
}

// forget is for a user that is gone.
func (p *passwords) forget(user string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, user)
}

// maxPasswordRounds bounds what a hash in the table can make this node do.
const maxPasswordRounds = 10 * passwordRounds

func passwordParameters(stored []byte) (rounds int, salt []byte, ok bool) {
	parts := bytes.Split(stored, []byte("$"))
	if len(parts) != 4 || string(parts[0]) != "pbkdf2-sha256" {
		return 0, nil, false
	}
	salt = make([]byte, base64.RawStdEncoding.DecodedLen(len(parts[2])))
	n, err := base64.RawStdEncoding.Decode(salt, parts[2])
	if _, err2 := fmt.Sscanf(string(parts[1]), "%d", &rounds); err != nil || err2 != nil || rounds < 1 || rounds > maxPasswordRounds {
		return 0, nil, false
	}
	return rounds, salt[:n], true
}
