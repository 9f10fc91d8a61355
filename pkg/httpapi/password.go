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
// wait there are not many: a flood of logins must not take the CPU, and one that
// comes from one address must not lock out the others.
type passwords struct {
	// constant
	rounds int
	slots  chan struct{} // one entry for each hash that is being made
	queue  chan struct{} // one for each that is, or waits for a slot
	key    []byte        // of known; never leaves the process

	mu     sync.Mutex
	asking map[string]int // of queue, by who asks
	checks map[passwordCheck]*passwordResult
	// known are the passwords that were right, by user: SDKs log in again and
	// again, and all at once after a restart.
	known map[string]knownPassword
}

type knownPassword struct {
	stored []byte // that it was right for
	sum    []byte // of the password, with key
}

// A passwordCheck is one that is under way. Who asks the same waits for its
// result: after a restart, all clients of an account come at once.
type passwordCheck struct{ user, stored, sum string }

type passwordResult struct {
	done  chan struct{} // closed when there is one
	right bool
	err   error
}

const (
	passwordRounds  = 600_000 // about 0.15 s; what OWASP recommends for SHA-256
	maxPasswords    = 100     // under way and waiting
	maxPasswordsOf  = 8       // of one address; they are over before another one gives up, also on a slow machine
	passwordWait    = 5 * time.Second
	passwordFormat  = "pbkdf2-sha256$%d$%s$%s" // rounds, salt, hash
	maxPasswordSize = 1024                     // bytes
	maxKnown        = 10_000                   // with more they are learnt anew
)

func newPasswords() *passwords {
	p := &passwords{rounds: passwordRounds, slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/4)), queue: make(chan struct{}, maxPasswords),
		key: make([]byte, sha256.Size), known: map[string]knownPassword{}, asking: map[string]int{}, checks: map[passwordCheck]*passwordResult{}}
	rand.Read(p.key) // never fails
	return p
}

// slowly calls f when it is its turn, in the order of who asked. It fails when
// that does not come soon.
func (p *passwords) slowly(ctx context.Context, from string, f func()) error {
	if !p.enter(from) {
		return errPasswords
	}
	defer p.leave(from)
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

// enter counts one that an address asks for, unless there are too many of them.
func (p *passwords) enter(from string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking[from] >= maxPasswordsOf {
		return false
	}
	p.asking[from]++
	return true
}

func (p *passwords) leave(from string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking[from]--; p.asking[from] == 0 {
		delete(p.asking, from)
	}
}

// hash is what is kept of a password.
func (p *passwords) hash(ctx context.Context, from, password string) (stored []byte, err error) {
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	err = p.slowly(ctx, from, func() { stored = passwordHash(password, p.rounds, salt) })
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
func (p *passwords) check(ctx context.Context, from, user string, stored []byte, password string) (right bool, err error) {
	mac := hmac.New(sha256.New, p.key)
	mac.Write([]byte(password))
	sum := mac.Sum(nil)
	this := passwordCheck{user, string(stored), string(sum)}
	p.mu.Lock()
	known, ok := p.known[user]
	if ok && bytes.Equal(known.stored, stored) && hmac.Equal(known.sum, sum) {
		p.mu.Unlock()
		return true, nil
	}
	result, underway := p.checks[this]
	if !underway {
		result = &passwordResult{done: make(chan struct{})}
		p.checks[this] = result
	}
	p.mu.Unlock()
	if underway {
		select {
		case <-result.done:
			return result.right, result.err
		case <-ctx.Done():
			return false, errPasswords
		}
	}
	defer func() {
		p.mu.Lock()
		delete(p.checks, this)
		p.mu.Unlock()
		close(result.done)
	}()
	// Others may wait for it, so it does not end with the one who asked first.
	result.right, result.err = p.checkSlowly(context.WithoutCancel(ctx), from, user, stored, password, sum)
	return result.right, result.err
}

func (p *passwords) checkSlowly(ctx context.Context, from, user string, stored []byte, password string, sum []byte) (right bool, err error) {
	rounds, salt := p.rounds, make([]byte, 16)
	if stored != nil {
		var ok bool
		if rounds, salt, ok = passwordParameters(stored); !ok {
			return false, fmt.Errorf("what is kept of the password of user %q was not made by this release", user)
		}
	}
	err = p.slowly(ctx, from, func() { right = hmac.Equal(passwordHash(password, rounds, salt), stored) })
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
