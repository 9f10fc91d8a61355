package cluster

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"time"
)

// MinKey is the shortest secret, in bytes.
const MinKey = 16

// ParseKeys reads a file of secrets: one a line, without the space around it,
// the one to use first. Empty lines and those that begin with # do not count.
func ParseKeys(file []byte) ([][]byte, error) {
	var keys [][]byte
	lines := bufio.NewScanner(bytes.NewReader(file))
	for n := 1; lines.Scan(); n++ {
		key := bytes.TrimSpace(lines.Bytes())
		if len(key) == 0 || key[0] == '#' {
			continue
		}
		keys = append(keys, slices.Clone(key))
		if len(key) < MinKey {
			return nil, fmt.Errorf("line %d: a secret has at least %d bytes, this one %d", n, MinKey, len(key))
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errors.New("no secret in the file")
	}
	return keys, nil
}

// identity is what a node shows of itself and accepts of others. It is
// immutable; a rotation makes a new one.
type identity struct {
	gossip  [][]byte // keys of gossip, the first is used; none: plain
	leaf    *tls.Certificate
	roots   *x509.CertPool
	derived bool // the certificates are, so they carry node ids
}

// plain says that streams are not encrypted.
func (i *identity) plain() bool { return i.leaf == nil }

func newIdentity(o *Options, keys [][]byte) (*identity, error) {
	i := &identity{derived: o.CertFile == ""}
	for n, key := range keys {
		if len(key) < MinKey {
			return nil, fmt.Errorf("cluster: secret %d has %d bytes, at least %d are needed", n+1, len(key), MinKey)
		}
		gossip, err := hkdf.Key(sha256.New, key, nil, "starling gossip 1", 32)
		if err != nil {
			return nil, err
		}
		i.gossip = append(i.gossip, gossip)
	}
	if !i.derived {
		leaf, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cluster: --peer-cert, --peer-key: %w", err)
		}
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cluster: --peer-ca: %w", err)
		}
		i.leaf, i.roots = &leaf, x509.NewCertPool()
		if !i.roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cluster: --peer-ca: no certificate in %s", o.CAFile)
		}
		return i, nil
	}
	for n, key := range keys {
		ca, signer, err := deriveCA(key)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			i.roots = x509.NewCertPool()
			if i.leaf, err = makeLeaf(o.ID, ca, signer); err != nil {
				return nil, err
			}
		}
		i.roots.AddCert(ca)
	}
	return i, nil
}

// Certificates are valid for ever: who knows the secret can make one at any
// time, and clocks may be wrong.
var (
	notBefore = time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC)
	notAfter  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// deriveCA makes the certificate authority of a secret, the same on all nodes.
func deriveCA(secret []byte) (*x509.Certificate, ed25519.PrivateKey, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, "starling cluster ca 1", ed25519.SeedSize)
	if err != nil {
		return nil, nil, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	public := sha256.Sum256(key.Public().(ed25519.PublicKey))
	template := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(public[:16]),
		Subject:               pkix.Name{CommonName: fmt.Sprintf("starling cluster %x", public[:8])},
		SubjectKeyId:          public[:20],
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	ca, err := x509.ParseCertificate(der)
	return ca, key, err
}

// makeLeaf makes the certificate of a node. Its key exists only in memory.
func makeLeaf(id string, ca *x509.Certificate, signer ed25519.PrivateKey) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: id},
		DNSNames:     []string{id},
		NotBefore:    notBefore,
		NotAfter:     notAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

var errOtherNode = errors.New("another node answers at its address")

// verify checks a certificate against the accepted authorities and, if id is
// not empty, that it belongs to that node. A configured certificate may carry
// the host instead of the id.
func (i *identity) verify(state tls.ConnectionState, usage x509.ExtKeyUsage, id, host string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("no certificate")
	}
	leaf := state.PeerCertificates[0]
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: i.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
		return err
	}
	if id == "" || leaf.VerifyHostname(id) == nil {
		return nil
	}
	if !i.derived && leaf.VerifyHostname(host) == nil {
		return nil
	}
	return errOtherNode
}

// certifies tells whether the certificate of a caller lets it be a node.
func (i *identity) certifies(state tls.ConnectionState, id string) bool {
	leaf := state.PeerCertificates[0]
	if leaf.VerifyHostname(id) == nil {
		return true
	}
	// A configured certificate that names no node is anybody's in the cluster.
	return !i.derived && !slices.ContainsFunc(leaf.DNSNames, validID)
}

// ServerTLS is for what listens to other nodes of the cluster: it asks for
// their certificates and checks them, with the keys of the moment. It is nil
// if nothing is encrypted.
func (c *Cluster) ServerTLS() *tls.Config {
	if c.identity.Load().plain() {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			i := c.identity.Load()
			return &tls.Config{
				MinVersion:             tls.VersionTLS13,
				NextProtos:             []string{"h2"},
				Certificates:           []tls.Certificate{*i.leaf},
				ClientAuth:             tls.RequireAnyClientCert,
				SessionTicketsDisabled: true, // each connection is checked
				VerifyConnection: func(state tls.ConnectionState) error {
					return i.verify(state, x509.ExtKeyUsageClientAuth, "", "")
				},
			}, nil
		},
	}
}

// ClientTLS is for connections to a node of the cluster: it shows this node's
// certificate, and fails if another node answers. It is nil if nothing is
// encrypted.
func (c *Cluster) ClientTLS(id, host string) *tls.Config {
	i := c.identity.Load()
	if i.plain() {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		ServerName: id,
		// VerifyConnection checks instead.
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return i.leaf, nil
		},
		VerifyConnection: func(state tls.ConnectionState) error {
			return i.verify(state, x509.ExtKeyUsageServerAuth, id, host)
		},
	}
}
