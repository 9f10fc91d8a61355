package nacos

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Switches are what operators switch for a whole cluster while it runs
// (http-api §5.12), as the API shows them: spelled as in 3.x (golden scenario
// 18). Many have no effect, in Nacos or here; they are kept and shown. What is
// in maps and lists is replaced, never changed, so that a copy stays as it is.
type Switches struct {
	Name                  string         `json:"name"`
	Masters               []string       `json:"masters"`
	AdWeight              map[string]int `json:"adWeightMap"`
	PushCacheMillis       int64          `json:"defaultPushCacheMillis"`
	ClientBeatInterval    int64          `json:"clientBeatInterval"` // milliseconds
	CacheMillis           int64          `json:"defaultCacheMillis"`
	DistroThreshold       decimal        `json:"distroThreshold"`
	HealthCheckEnabled    bool           `json:"healthCheckEnabled"`
	AutoChangeHealthCheck bool           `json:"autoChangeHealthCheckEnabled"`
	DistroEnabled         bool           `json:"distroEnabled"`
	EnableStandalone      bool           `json:"enableStandalone"`
	PushEnabled           bool           `json:"pushEnabled"`
	CheckTimes            int            `json:"checkTimes"`
	HTTPHealth            HealthParams   `json:"httpHealthParams"`
	TCPHealth             HealthParams   `json:"tcpHealthParams"`
	MySQLHealth           HealthParams   `json:"mysqlHealthParams"`
	Incremental           []string       `json:"incrementalList"`
	ServerStatusPeriod    int64          `json:"serverStatusSynchronizationPeriodMillis"`
	ServiceStatusPeriod   int64          `json:"serviceStatusSynchronizationPeriodMillis"`
	DisableAddIP          bool           `json:"disableAddIP"`
	SendBeatOnly          bool           `json:"sendBeatOnly"`
	LightBeatEnabled      bool           `json:"lightBeatEnabled"`
	LimitedURLs           map[string]int `json:"limitedUrlMap"` // status by path
	DistroServerExpired   int64          `json:"distroServerExpiredMillis"`
	PushVersionOfGo       string         `json:"pushVersionOfGo"`
	PushVersionOfJava     string         `json:"pushVersionOfJava"`
	PushVersionOfPython   string         `json:"pushVersionOfPython"`
	PushVersionOfC        string         `json:"pushVersionOfC"`
	PushVersionOfCsharp   string         `json:"pushVersionOfCsharp"`
	EnableAuthentication  bool           `json:"enableAuthentication"`
	OverriddenStatus      *string        `json:"overriddenServerStatus"` // nil: never said; "": not any more
	DefaultEphemeral      bool           `json:"defaultInstanceEphemeral"`
	HealthCheckWhiteList  []string       `json:"healthCheckWhiteList"`
	Checksum              *string        `json:"checksum"`
}

// HealthParams are how Nacos paces health checks: from Min to Max milliseconds,
// by what the last ones took.
type HealthParams struct {
	Max    int64   `json:"max"`
	Min    int64   `json:"min"`
	Factor decimal `json:"factor"`
}

// A decimal is a number that JSON shows as Java does, always with a fraction.
type decimal float64

// MarshalJSON implements json.Marshaler.
func (d decimal) MarshalJSON() ([]byte, error) { return appendFloat(nil, float64(d)), nil }

// DefaultSwitches are those that nobody has set.
func DefaultSwitches() Switches {
	return Switches{
		Name: "00-00---000-NACOS_SWITCH_DOMAIN-000---00-00", AdWeight: map[string]int{},
		PushCacheMillis: CacheMillis, ClientBeatInterval: DefaultBeatInterval, CacheMillis: 3000, DistroThreshold: 0.7,
		HealthCheckEnabled: true, AutoChangeHealthCheck: true, DistroEnabled: true, EnableStandalone: true, PushEnabled: true, CheckTimes: 3,
		HTTPHealth: HealthParams{5000, 500, 0.85}, TCPHealth: HealthParams{5000, 1000, 0.75}, MySQLHealth: HealthParams{3000, 2000, 0.65},
		Incremental: []string{}, ServerStatusPeriod: 2000, ServiceStatusPeriod: 5000, LightBeatEnabled: true, LimitedURLs: map[string]int{},
		DistroServerExpired: 10000, PushVersionOfGo: "0.1.0", PushVersionOfJava: "0.1.0", PushVersionOfPython: "0.4.3",
		PushVersionOfC: "1.0.12", PushVersionOfCsharp: "0.9.0", DefaultEphemeral: true, HealthCheckWhiteList: []string{},
	}
}

// States of a server (semantics M11).
const (
	StatusUp        = "UP"
	StatusDown      = "DOWN"
	StatusStarting  = "STARTING"
	StatusPaused    = "PAUSED"
	StatusReadOnly  = "READ_ONLY"
	StatusWriteOnly = "WRITE_ONLY"
)

// Status is what an operator says the server is, UP if nobody says anything.
func (s *Switches) Status() string {
	if s.OverriddenStatus == nil || *s.OverriddenStatus == "" {
		return StatusUp
	}
	return *s.OverriddenStatus
}

// A switchRow is one switch. It is kept under the name that its member has in
// the JSON; requests set it by its entry, "" if there is none of its own.
type switchRow struct {
	entry, name string
	set         func(*Switches, string) error
}

var switchRows = []switchRow{
	{"check", "healthCheckEnabled", setBool(func(s *Switches) *bool { return &s.HealthCheckEnabled })},
	{"autoChangeHealthCheckEnabled", "autoChangeHealthCheckEnabled", setBool(func(s *Switches) *bool { return &s.AutoChangeHealthCheck })},
	{"healthCheckTimes", "checkTimes", setCheckTimes},
	{"pushEnabled", "pushEnabled", setBool(func(s *Switches) *bool { return &s.PushEnabled })},
	{"lightBeatEnabled", "lightBeatEnabled", setBool(func(s *Switches) *bool { return &s.LightBeatEnabled })},
	{"defaultInstanceEphemeral", "defaultInstanceEphemeral", setBool(func(s *Switches) *bool { return &s.DefaultEphemeral })},
	{"clientBeatInterval", "clientBeatInterval", setBeatInterval},
	{"pushCacheMillis", "defaultPushCacheMillis", setMillis(func(s *Switches) *int64 { return &s.PushCacheMillis }, 10000, "min cache time for http or tcp is too small(<10000)")},
	{"defaultCacheMillis", "defaultCacheMillis", setMillis(func(s *Switches) *int64 { return &s.CacheMillis }, 1000, "min default cache time  is too small(<1000)")},
	{"overriddenServerStatus", "overriddenServerStatus", setStatus},
	{"limitedUrlMap", "limitedUrlMap", setLimitedURLs},
	{"httpHealthParams", "httpHealthParams", setHealth(func(s *Switches) *HealthParams { return &s.HTTPHealth })},
	{"tcpHealthParams", "tcpHealthParams", setHealth(func(s *Switches) *HealthParams { return &s.TCPHealth })},
	{"mysqlHealthParams", "mysqlHealthParams", setHealth(func(s *Switches) *HealthParams { return &s.MySQLHealth })},
	{"distro", "distroEnabled", setBool(func(s *Switches) *bool { return &s.DistroEnabled })},
	{"distroThreshold", "distroThreshold", setDistroThreshold},
	{"distroServerExpiredMillis", "distroServerExpiredMillis", setMillis(func(s *Switches) *int64 { return &s.DistroServerExpired }, 1, "distroServerExpiredMillis must be positive")},
	{"masters", "masters", setMasters},
	{"serverStatusSynchronizationPeriodMillis", "serverStatusSynchronizationPeriodMillis", setMillis(func(s *Switches) *int64 { return &s.ServerStatusPeriod }, 1000, "serverStatusSynchronizationPeriodMillis is too small(<1000)")},
	{"serviceStatusSynchronizationPeriodMillis", "serviceStatusSynchronizationPeriodMillis", setMillis(func(s *Switches) *int64 { return &s.ServiceStatusPeriod }, 5000, "serviceStatusSynchronizationPeriodMillis is too small(<5000)")},
	{"disableAddIP", "disableAddIP", setBool(func(s *Switches) *bool { return &s.DisableAddIP })},
	{"sendBeatOnly", "sendBeatOnly", setBool(func(s *Switches) *bool { return &s.SendBeatOnly })},
	{"enableStandalone", "enableStandalone", setBool(func(s *Switches) *bool { return &s.EnableStandalone })},
	{"", "pushVersionOfJava", setVersion(func(s *Switches) *string { return &s.PushVersionOfJava })},
	{"", "pushVersionOfPython", setVersion(func(s *Switches) *string { return &s.PushVersionOfPython })},
	{"", "pushVersionOfC", setVersion(func(s *Switches) *string { return &s.PushVersionOfC })},
	{"", "pushVersionOfGo", setVersion(func(s *Switches) *string { return &s.PushVersionOfGo })},
	{"", "pushVersionOfCsharp", setVersion(func(s *Switches) *string { return &s.PushVersionOfCsharp })},
}

// pushVersions are the switches behind the entry pushVersion, whose value is
// language:version.
var pushVersions = map[string]string{"java": "pushVersionOfJava", "python": "pushVersionOfPython", "c": "pushVersionOfC",
	"go": "pushVersionOfGo", "csharp": "pushVersionOfCsharp"}

// MaxSwitchValue bounds the value of a switch, in bytes.
const MaxSwitchValue = 16 << 10

// ParseSwitch reads what a request says of a switch: under which name it is to
// be kept, and the value, for [Switches.Set]. The name is "" if nothing is to
// change: Nacos has no such switch, and says "ok" to it. Errors are for the
// client.
func ParseSwitch(entry, value string) (name, kept string, err error) {
	kept = strings.TrimSpace(value)
	if len(kept) > MaxSwitchValue {
		return "", "", ParamError(fmt.Sprintf("the value of a switch is at most %d bytes long", MaxSwitchValue))
	}
	switch entry {
	case "batch":
		return "", "", ParamError("entry batch is not offered, set one switch after the other")
	case "pushVersion":
		language, version, _ := strings.Cut(kept, ":")
		if name = pushVersions[language]; name == "" {
			return "", "", ParamError("unsupported client type: " + language)
		}
		kept = version
	case "limitedUrlMap":
		if kept == "" { // "," is how it is cleared (golden scenario 75)
			return "", "", nil
		}
	}
	for _, row := range switchRows {
		if row.name == name || name == "" && row.entry != "" && row.entry == entry {
			var s Switches
			if err := row.set(&s, kept); err != nil {
				return "", "", err
			}
			return row.name, kept, nil
		}
	}
	return "", "", nil
}

// Set takes over a value that is kept under that name.
func (s *Switches) Set(name, kept string) error {
	for _, row := range switchRows {
		if row.name == name {
			return row.set(s, kept)
		}
	}
	return fmt.Errorf("no switch has the name %.200q", name)
}

// AppendJSON appends the switches as the API shows them.
func (s *Switches) AppendJSON(b []byte) ([]byte, error) {
	j, err := json.Marshal(s)
	return append(b, j...), err
}

func setBool(of func(*Switches) *bool) func(*Switches, string) error {
	return func(s *Switches, value string) error {
		switch strings.ToLower(value) {
		case "true":
			*of(s) = true
		case "false":
			*of(s) = false
		default: // Nacos takes any other word for false
			return ParamError("the value of this switch is true or false, not " + value)
		}
		return nil
	}
}

func parseLong(value string) (int64, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, ParamError(`For input string: "` + value + `"`)
	}
	return n, nil
}

func setMillis(of func(*Switches) *int64, least int64, tooSmall string) func(*Switches, string) error {
	return func(s *Switches, value string) error {
		n, err := parseLong(value)
		if err == nil && n < least {
			err = ParamError(tooSmall)
		}
		if err == nil {
			*of(s) = n
		}
		return err
	}
}

// setBeatInterval has bounds that Nacos has not: all clients adopt the value
// with their next beat, and hear of another one only with the beat after that.
func setBeatInterval(s *Switches, value string) error {
	n, err := parseLong(value)
	if err == nil && (n < 100 || n > 3_600_000) {
		err = ParamError("clientBeatInterval must be from 100 to 3600000 milliseconds")
	}
	if err == nil {
		s.ClientBeatInterval = n
	}
	return err
}

func setCheckTimes(s *Switches, value string) error {
	n, err := parseLong(value)
	if err == nil && (n < 1 || n > 100) {
		err = ParamError("healthCheckTimes must be from 1 to 100")
	}
	if err == nil {
		s.CheckTimes = int(n)
	}
	return err
}

func setDistroThreshold(s *Switches, value string) error {
	f, err := ParseFloat(value, 32)
	switch {
	case err != nil || f != f || f > 1e9:
		return ParamError(`For input string: "` + value + `"`)
	case f <= 0:
		return ParamError("distroThreshold can not be zero or negative: " + value)
	}
	// As a double, 0.7 read as a float would be shown as 0.699999988079071.
	exact, _ := strconv.ParseFloat(value, 64)
	s.DistroThreshold = decimal(exact)
	return nil
}

func setMasters(s *Switches, value string) error {
	s.Masters = strings.Split(value, ",")
	return nil
}

func setStatus(s *Switches, value string) error {
	switch value {
	case "null": // as Nacos keeps it
		value = ""
	case "", StatusUp, StatusDown, StatusStarting, StatusPaused, StatusReadOnly, StatusWriteOnly:
	default:
		return ParamError("the value of overriddenServerStatus is UP, DOWN, STARTING, PAUSED, READ_ONLY, WRITE_ONLY or null, not " + value)
	}
	s.OverriddenStatus = &value
	return nil
}

// setLimitedURLs reads path:status,path:status. The paths have no effect, in
// Nacos 3.1 either (golden scenario 75).
func setLimitedURLs(s *Switches, value string) error {
	urls := map[string]int{}
	value = strings.TrimRight(value, ",")
	for each := range strings.SplitSeq(value, ",") {
		if value == "" {
			break
		}
		url, code, ok := strings.Cut(each, ":")
		if !ok {
			return ParamError("invalid input for limited urls")
		}
		if url == "" {
			return ParamError("url can not be empty, url: " + url)
		}
		code, _, _ = strings.Cut(code, ":")
		n, err := strconv.ParseInt(code, 10, 32)
		switch {
		case err != nil:
			return ParamError(`For input string: "` + code + `"`)
		case n <= 0:
			return ParamError("illegal normal status code: " + code)
		}
		urls[url] = int(n)
	}
	s.LimitedURLs = urls
	return nil
}

func setHealth(of func(*Switches) *HealthParams) func(*Switches, string) error {
	return func(s *Switches, value string) error {
		var given struct {
			Max    *int64   `json:"max"`
			Min    *int64   `json:"min"`
			Factor *float64 `json:"factor"`
		}
		d := json.NewDecoder(strings.NewReader(value))
		d.DisallowUnknownFields()
		if err := d.Decode(&given); err != nil || d.More() {
			return ParamError(`the value of this switch is like {"max":5000,"min":1000,"factor":0.75}, all three, and nothing else`)
		}
		switch {
		case given.Max == nil || given.Min == nil || given.Factor == nil:
			return ParamError(`the value of this switch is like {"max":5000,"min":1000,"factor":0.75}, all three, and nothing else`)
		case *given.Min < 500:
			return ParamError("min check time for http or tcp is too small(<500)")
		case *given.Max < 3000:
			return ParamError("max check time for http or tcp is too small(<3000)")
		case *given.Max < *given.Min:
			return ParamError("max check time is below min check time")
		case !(*given.Factor >= 0 && *given.Factor <= 1):
			return ParamError("malformed factor")
		}
		*of(s) = HealthParams{*given.Max, *given.Min, decimal(*given.Factor)}
		return nil
	}
}

var versionSyntax = regexp.MustCompile(`^[0-9]{1,5}\.[0-9]{1,5}\.[0-9]{1,5}$`)

func setVersion(of func(*Switches) *string) func(*Switches, string) error {
	return func(s *Switches, value string) error {
		if !versionSyntax.MatchString(value) {
			return ParamError("illegal version, must match: [0-9]+\\.[0-9]+\\.[0-9]+")
		}
		*of(s) = value
		return nil
	}
}

// A PushState is what became of the pushes of a node (http-api §5.12). Costs are
// the milliseconds until the client's answer; -1: there was none yet.
type PushState struct {
	Succeeded, Total  int64
	MeanCost, MaxCost int64
}

// AppendJSON appends it as operator/push/state shows it.
func (p *PushState) AppendJSON(b []byte, detail, reset bool) []byte {
	b = strconv.AppendInt(append(b, `{"succeed":`...), p.Succeeded, 10)
	b = strconv.AppendInt(append(b, `,"total":`...), p.Total, 10)
	if b = append(b, `,"ratio":`...); p.Total == 0 {
		b = append(b, '0')
	} else {
		b = appendFloat(b, float64(p.Succeeded)/float64(p.Total))
	}
	if detail {
		b = strconv.AppendInt(append(b, `,"detail":{"avgPushCost":`...), p.MeanCost, 10)
		b = append(strconv.AppendInt(append(b, `,"maxPushCost":`...), p.MaxCost, 10), '}')
	}
	return append(appendBool(b, `,"reset":`, reset), '}')
}
