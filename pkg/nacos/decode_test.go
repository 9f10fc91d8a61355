package nacos

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Bodies as SDKs send them; all of them are to be read by hand.
var usualBodies = []struct {
	name string
	new  func() any
	body string
}{
	{"instance", func() any { return new(InstanceRequest) },
		`{"headers":{},"namespace":"public","serviceName":"order","groupName":"DEFAULT_GROUP","type":"registerInstance","instance":{"ip":"10.0.0.5","port":8080,"weight":1.0,"healthy":true,"enabled":true,"ephemeral":true,"clusterName":"DEFAULT","metadata":{"zone":"a","version":"1.2.3"},"instanceHeartBeatInterval":5000,"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000,"instanceIdGenerator":"simple"},"module":"naming"}`},
	{"deregister-go", func() any { return new(InstanceRequest) },
		`{"headers":{},"requestId":"","namespace":"n1","serviceName":"order","groupName":"g","module":"naming","type":"deregisterInstance","instance":{"instanceId":"","ip":"10.0.0.5","port":8080,"weight":0,"healthy":false,"enabled":false,"ephemeral":true,"clusterName":"","serviceName":"","metadata":null,"instanceHeartBeatInterval":0,"ipDeleteTimeout":0,"instanceHeartBeatTimeOut":0}}`},
	{"batch", func() any { return new(BatchInstanceRequest) },
		`{"headers":{},"namespace":"public","serviceName":"order","groupName":"DEFAULT_GROUP","type":"batchRegisterInstance","instances":[{"ip":"10.0.0.5","port":1,"weight":2.5,"metadata":{}},{"ip":"10.0.0.6","port":2,"clusterName":"c1"},null],"module":"naming"}`},
	{"subscribe", func() any { return new(SubscribeServiceRequest) },
		`{"headers":{},"namespace":"public","serviceName":"order","groupName":"DEFAULT_GROUP","subscribe":true,"clusters":"","module":"naming"}`},
	{"query", func() any { return new(ServiceQueryRequest) },
		`{"headers":{},"namespace":"public","serviceName":"order","groupName":"DEFAULT_GROUP","cluster":"","healthyOnly":false,"udpPort":0,"module":"naming"}`},
	{"ack", func() any { return new(Ack) },
		`{"resultCode":200,"errorCode":0,"requestId":"7","success":true}`},
}

var unusualBodies = []string{
	``, ` `, `null`, `{}`, ` { } `, `[]`, `{`, `}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":1}x`, "{\"a\":1}\x00", `{"instance":null}`, `{"instances":null}`,
	`{"Type":"a"}`, `{"type":"a","TYPE":"b"}`, `{"type":"a","type":"b"}`, `{"type":"a","type":null}`, `{"type":1}`, `{"clusters":null,"clusters":"c"}`,
	"{\"\u017ferviceName\":\"long s\"}", "{\"names\u212aace\":1}", `{"ſubscribe":true}`, `{"\u0074ype":"escaped"}`, `{"type":"\n\ud800\udc00\ud800"}`,
	"{\"type\":\"\xff\xc3\"}", "{\"x\":\"\xff\"}", "{\"type\":\"a\tb\"}", `{"type":"世"}`,
	`{"instance":{"port":80.0}}`, `{"instance":{"port":1e2}}`, `{"instance":{"port":-1}}`, `{"instance":{"port":007}}`, `{"instance":{"port":99999999999}}`, `{"instance":{"port":"80"}}`,
	`{"instance":{"weight":-0}}`, `{"instance":{"weight":1.}}`, `{"instance":{"weight":.5}}`, `{"instance":{"weight":1e400}}`, `{"instance":{"weight":0.1}}`, `{"instance":{"weight":NaN}}`,
	`{"instance":{"healthy":"true"}}`, `{"instance":{"healthy":tru}}`, `{"instance":{"healthy":null,"weight":null,"ip":null,"port":null}}`, `{"instance":{"Healthy":false}}`,
	`{"instance":{"metadata":{"a":1.50,"b":true,"c":null,"d":"x"}}}`, `{"instance":{"metadata":{"a":"1","a":"2"}}}`, `{"instance":{"metadata":{"a":"1","A":"2"}}}`, `{"instance":{"metadata":{"a":[1]}}}`, `{"instance":{"metadata":[]}}`,
	`{"instance":{"metadata":{"a":"b"},"metadata":null}}`, `{"instance":{"ip":"a"},"instance":{"port":1}}`, `{"instance":{"metadata":{"1":"","2":"","3":"","4":"","5":"","6":"","7":"","8":"","9":""}}}`,
	`{"instances":[{},null,{"ip":"1"}]}`, `{"instances":[1]}`, `{"instances":[{},]}`, `{"instances":{}}`, `{"x":[[[{"y":[1,2,{"z":null}]}]]],"type":"t"}`,
	`{"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, `{"subscribe":1}`, `{"resultCode":-401}`, `{"resultCode":2e2}`, `{"x":-1.5e+7,"type":"t"}`, `{"x":01}`, `{"x":"\q"}`,
}

// agree fails unless decoding by hand, where it succeeds, gives what
// encoding/json does.
func agree(t *testing.T, body []byte) {
	t.Helper()
	for _, u := range usualBodies {
		byHand, byJSON := u.new(), u.new()
		if !decodeByHand(body, byHand) {
			if !reflect.ValueOf(byHand).Elem().IsZero() {
				t.Errorf("%q into %T: gave up and left %+v", body, byHand, byHand)
			}
			continue
		}
		if err := json.Unmarshal(body, byJSON); err != nil {
			t.Errorf("%q into %T: accepted, but %v", body, byHand, err)
		} else if !reflect.DeepEqual(byHand, byJSON) {
			t.Errorf("%q: by hand %+v, by encoding/json %+v", body, byHand, byJSON)
		}
	}
}

func TestDecodeByHand(t *testing.T) {
	for _, u := range usualBodies {
		agree(t, []byte(u.body))
		if !decodeByHand([]byte(u.body), u.new()) {
			t.Errorf("%s: left to encoding/json", u.name)
		}
	}
	for _, body := range unusualBodies {
		agree(t, []byte(body))
	}
}

func FuzzDecodeByHand(f *testing.F) {
	for _, u := range usualBodies {
		f.Add([]byte(u.body))
	}
	for _, body := range unusualBodies {
		f.Add([]byte(body))
	}
	f.Fuzz(agree)
}
