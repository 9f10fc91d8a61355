package nacos

import (
	"math"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Lengths in UTF-16 units, as Java counts them (grpc-protocol §5.1).
const (
	maxNamespace = 64
	maxService   = 512
	maxGroup     = 128
	maxCluster   = 64
	maxIP        = 128
	maxMetadata  = 1024 // all keys and values together

	// Nacos does not bound these. They are kept, and repeated in every answer
	// and push: one request must not make all of those big.
	maxClusters   = 4096 // a list of cluster names
	maxInstanceID = 1024 // the usual one is shorter
	maxPattern    = 1024 // the longest names, their stars and separators are shorter
)

// A ParamError says which parameter is wrong, in the words that clients know.
type ParamError string

func (e ParamError) Error() string { return string(e) }

const (
	tooLong  = ParamError("Param '%' is illegal, the param length should not exceed #.")
	badChars = ParamError("Param '%' is illegal, illegal characters should not appear in the param.")
	badPort  = ParamError("Param 'port' is illegal, the value should be between 0 and 65535.")

	// The following are refused by handlers, not by the parameter check
	// (grpc-protocol §5.2).
	ErrBeatTimes  = ParamError("Instance 'heart beat interval' must less than 'heart beat timeout' and 'ip delete timeout'.")
	ErrWeight     = ParamError("instance format invalid: The weights range from 0.0 to 10000.0")
	ErrNoIP       = ParamError("Required parameter 'ip' type String is not present")
	ErrGenerator  = ParamError("The InstanceIdGenerator type is not found ")
	ErrNoInstance = ParamError("Instance can not be null.")
)

// Blank reports whether a parameter counts as not given.
func Blank(s string) bool { return strings.TrimSpace(s) == "" }

func check(name, s string, limit string, max int, legal func(string) bool) error {
	if s == "" {
		return nil
	}
	if utf16Len(s) > max {
		return ParamError(strings.Replace(strings.Replace(string(tooLong), "%", name, 1), "#", limit, 1))
	}
	if !legal(s) {
		return ParamError(strings.Replace(string(badChars), "%", name, 1))
	}
	return nil
}

func utf16Len(s string) int {
	n := 0
	for _, r := range s {
		n += max(1, utf16.RuneLen(r))
	}
	return n
}

// CheckService checks the parts of a service's name; blank ones pass.
func CheckService(namespace, service, group string) error {
	if Blank(namespace) {
		namespace = ""
	}
	if err := check("namespaceId/tenant", namespace, "64", maxNamespace, func(s string) bool { return only(s, "_-") }); err != nil {
		return err
	}
	if Blank(service) {
		service = ""
	}
	if err := check("serviceName", service, "512", maxService, legalService); err != nil {
		return err
	}
	if Blank(group) {
		group = ""
	}
	return check("group", group, "128", maxGroup, func(s string) bool { return only(s, "-_:.") })
}

// CheckCluster checks one cluster name.
func CheckCluster(name string) error {
	if Blank(name) {
		return nil
	}
	return check("cluster", name, "64", maxCluster, func(s string) bool { return only(s, "-_") })
}

// CheckClusters checks a comma list of cluster names.
func CheckClusters(list string) error {
	if err := check("cluster", list, "4096", maxClusters, func(string) bool { return true }); err != nil {
		return err
	}
	for name := range strings.SplitSeq(list, ",") {
		if err := CheckCluster(name); err != nil {
			return err
		}
	}
	return nil
}

// CheckIP checks an address: any text without blanks and Chinese characters.
func CheckIP(ip string) error { return check("ip", ip, "128", maxIP, plain) }

// CheckPort checks a port; 0 is allowed.
func CheckPort(port int) error {
	if port < 0 || port > math.MaxUint16 {
		return badPort
	}
	return nil
}

// CheckMetadata bounds the metadata of an instance.
func CheckMetadata(m map[string]string) error {
	n := 0
	for k, v := range m {
		n += utf16Len(k) + utf16Len(v)
	}
	if n > maxMetadata {
		return ParamError(strings.Replace(strings.Replace(string(tooLong), "%", "Metadata", 1), "#", "1024", 1))
	}
	return nil
}

// CheckInstance is the parameter check of an instance (grpc-protocol §5.1).
func CheckInstance(i *Instance) error {
	if i == nil {
		return nil
	}
	if err := CheckIP(i.IP); err != nil {
		return err
	}
	if err := CheckPort(i.Port); err != nil {
		return err
	}
	if err := CheckCluster(i.ClusterName); err != nil {
		return err
	}
	if err := check("instanceId", i.InstanceID, "1024", maxInstanceID, func(string) bool { return true }); err != nil {
		return err
	}
	return CheckMetadata(i.Metadata)
}

// CheckRegister is what a handler asks of an instance beyond the parameter
// check: times that fit each other, a cluster name without underscore, an
// address, and a weight that JSON can carry (grpc-protocol §5.2, semantics
// D19). Members of a batch may have an underscore (golden scenario 53).
func CheckRegister(i *Instance, batch bool) error {
	interval := millis(i.Metadata[KeyBeatInterval], DefaultBeatInterval)
	if millis(i.Metadata[KeyBeatTimeout], DefaultBeatTimeout) < interval || millis(i.Metadata[KeyDeleteAfter], DefaultDeleteAfter) < interval {
		return ErrBeatTimes
	}
	if !batch && i.ClusterName != "" && !only(i.ClusterName, "-") {
		return ParamError("Instance 'clusterName' should be characters with only 0-9a-zA-Z-. (current: " + i.ClusterName + ")")
	}
	return CheckShown(i)
}

// CheckShown asks of an instance only what others need to read it: all that
// is asked of a persistent one over gRPC (grpc-protocol §3.6).
func CheckShown(i *Instance) error {
	if Blank(i.IP) {
		return ErrNoIP
	}
	if !(i.Weight >= 0) || math.IsInf(i.Weight, 0) {
		return ErrWeight
	}
	return nil
}

// only reports whether s has nothing but ASCII letters, digits and extra.
func only(s, extra string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9') && strings.IndexByte(extra, c) < 0 {
			return false
		}
	}
	return true
}

// plain reports whether s has no white space and no Chinese character.
func plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return space(r) || 0x4E00 <= r && r <= 0x9FA5 })
}

func space(r rune) bool { return r == ' ' || '\t' <= r && r <= '\r' }

// legalService: the first character is no @; later ones are no white space and
// no Chinese character; no @@ after the first. Unlike in Nacos the name does
// not begin or end with a blank of any kind: readers of parameters cut those
// off, and then the name could not be asked for, nor removed (cases C28).
func legalService(s string) bool {
	if strings.TrimSpace(s) != s {
		return false
	}
	first, n := utf8.DecodeRuneInString(s)
	if first == '@' {
		return false
	}
	rest := s[n:]
	return plain(rest) && !strings.Contains(rest, "@@")
}
