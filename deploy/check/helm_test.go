package check

import (
	"bytes"
	"encoding/base64"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/yaml"
)

const chartDir = "../helm/starling"

var update = flag.Bool("update", false, "write anew what is made of other files: the plain manifests, and the chart's copy of the alerts")

// types of all objects that may be rendered: one of another kind is an error.
var types = map[string]func() meta.Object{
	"apps/v1 StatefulSet":                     func() meta.Object { return new(apps.StatefulSet) },
	"v1 Service":                              func() meta.Object { return new(core.Service) },
	"v1 Secret":                               func() meta.Object { return new(core.Secret) },
	"v1 Pod":                                  func() meta.Object { return new(core.Pod) },
	"policy/v1 PodDisruptionBudget":           func() meta.Object { return new(policy.PodDisruptionBudget) },
	"networking.k8s.io/v1 NetworkPolicy":      func() meta.Object { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() meta.Object { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() meta.Object { return new(monitoring.PrometheusRule) },
}

// objects are by kind and name.
type objects map[string]meta.Object

// get is the only object of a kind and name.
func get[T meta.Object](t *testing.T, o objects, name string) T {
	t.Helper()
	var zero T
	kind := reflect.TypeOf(zero).Elem().Name()
	v, ok := o[kind+" "+name].(T)
	if !ok {
		t.Fatalf("there is no %s %s, only %q", kind, name, slices.Sorted(maps.Keys(o)))
	}
	return v
}

// decode reads a stream of objects into their types. A field that the type does not
// have, or has twice, is an error, as it is with strict validation in a cluster.
func decode(t *testing.T, stream string) objects {
	t.Helper()
	o := objects{}
	for doc := range strings.SplitSeq(stream, "\n---") {
		var head struct {
			meta.TypeMeta   `json:",inline"`
			meta.ObjectMeta `json:"metadata"`
		}
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if head.Kind == "" && strings.TrimSpace(withoutComments(doc)) == "" {
			continue
		}
		make, ok := types[head.APIVersion+" "+head.Kind]
		if !ok {
			t.Fatalf("an object of the unexpected kind %q %q in\n%s", head.APIVersion, head.Kind, doc)
		}
		v, key := make(), head.Kind+" "+head.Name
		if err := yaml.UnmarshalStrict([]byte(doc), v); err != nil {
			t.Errorf("%s: %v in\n%s", key, err, doc)
		}
		if o[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		checkNames(t, key, v)
		o[key] = v
	}
	return o
}

// checkNames checks what a type alone does not say, and an API server refuses.
func checkNames(t *testing.T, key string, v meta.Object) {
	t.Helper()
	wrong := func(what string, messages []string) {
		if len(messages) > 0 {
			t.Errorf("%s: %s %q", key, what, messages)
		}
	}
	labels := func(all map[string]string) {
		for k, value := range all {
			wrong("label "+k, append(validation.IsQualifiedName(k), validation.IsValidLabelValue(value)...))
		}
	}
	labels(v.GetLabels())
	for k := range v.GetAnnotations() {
		wrong("annotation "+k, validation.IsQualifiedName(k))
	}
	wrong("name", validation.IsDNS1123Label(v.GetName()))
	switch v := v.(type) {
	case *core.Service:
		wrong("name", validation.IsDNS1035Label(v.Name))
		for _, p := range v.Spec.Ports {
			wrong("port", append(validation.IsValidPortNum(int(p.Port)), validation.IsDNS1123Label(p.Name)...))
		}
	case *apps.StatefulSet:
		labels(v.Spec.Template.Labels)
		for _, c := range v.Spec.Template.Spec.Containers {
			for _, p := range c.Ports {
				wrong("port "+p.Name, validation.IsValidPortName(p.Name))
			}
		}
	}
}

func withoutComments(doc string) string {
	var b strings.Builder
	for line := range strings.Lines(doc) {
		if s := strings.TrimSpace(line); !strings.HasPrefix(s, "#") && s != "---" {
			b.WriteString(line)
		}
	}
	return b.String()
}

// A cluster is what "lookup" finds.
type cluster struct {
	dynamic.Interface
}

func newCluster(there ...runtime.Object) cluster {
	return cluster{fake.NewSimpleDynamicClient(runtime.NewScheme(), there...)}
}

func (c cluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	v, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, false, err
	}
	return c.Resource(v.WithResource(strings.ToLower(kind) + "s")), true, nil
}

// render is "helm install" or "helm upgrade" without the cluster. It returns the
// stream and the notes.
func render(t *testing.T, values string, there cluster, upgrade bool) (stream, notes string, err error) {
	t.Helper()
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	v := chartutil.Values{}
	if err := yaml.UnmarshalStrict([]byte(values), &v); err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(c, v, chartutil.ReleaseOptions{Name: "starling", Namespace: "registry", Revision: 1, IsInstall: !upgrade, IsUpgrade: upgrade}, chartutil.DefaultCapabilities)
	if err != nil {
		return "", "", err
	}
	files, err := engine.RenderWithClientProvider(c, all, there)
	if err != nil {
		return "", "", err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			notes = files[name]
		} else if strings.TrimSpace(files[name]) != "" {
			fmt.Fprintf(&b, "---\n%s\n", strings.TrimSpace(files[name]))
		}
	}
	return b.String(), notes, nil
}

func mustRender(t *testing.T, values string, there cluster, upgrade bool) (objects, string) {
	t.Helper()
	stream, notes, err := render(t, values, there, upgrade)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, stream), notes
}

// containerOf is what the pods of a StatefulSet run, with what the downward API says.
func containerOf(t *testing.T, s *apps.StatefulSet, name, ip string) container {
	t.Helper()
	if n := len(s.Spec.Template.Spec.Containers); n != 1 {
		t.Fatalf("%d containers", n)
	}
	k := s.Spec.Template.Spec.Containers[0]
	c := container{k.Args, map[string]string{}}
	for _, e := range k.Env {
		switch {
		case e.ValueFrom == nil:
			c.env[e.Name] = e.Value
		case e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "metadata.name":
			c.env[e.Name] = name
		case e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "status.podIP":
			c.env[e.Name] = ip
		default:
			t.Errorf("variable %s has a source that is not expected", e.Name)
		}
	}
	return c
}

// The values that are tried. Each must be right, and each command line must be one
// that the program takes.
var variants = map[string]string{
	"default": ``,
	"one":     `replicas: 1`,
	"five":    `replicas: 5`,
	"joining": `{replicas: 3, expect: 0}`,
	"named":   `nameOverride: registry`,
	"monitored": `
fullnameOverride: nacos
serviceMonitor: {enabled: true, labels: {release: prometheus}}
networkPolicy:
  enabled: true
  clients: [{namespaceSelector: {matchLabels: {registry: "yes"}}}]
`,
	"node port": `service: {type: NodePort, nodePort: 30848}`,
	"much": `
fullnameOverride: nacos
bind: "::"
image: {repository: registry.example.org/starling, tag: v1.2.3}
imagePullSecrets: [{name: pull}]
gossipKey: {existingSecret: own, key: gossip}
settings: {log-level: debug, max-connections: 2000000, push-window: 50ms, peer-cert: /c, peer-key: /k, peer-ca: /a}
stop: {endpointsSeconds: 10, drainSeconds: 60}
service: {port: 80, type: LoadBalancer, annotations: {a: b}}
persistence: {storageClass: fast, size: 10Gi, accessMode: ReadWriteOncePod}
goMemoryLimit: ""
antiAffinity: preferred
affinity: {nodeAffinity: {}}
nodeSelector: {disk: ssd}
tolerations: [{operator: Exists}]
topologySpreadConstraints: []
priorityClassName: high
podAnnotations: {a: b}
podLabels: {a: b}
extraEnv: [{name: GODEBUG, value: ""}]
podDisruptionBudget: {enabled: false}
`,
}

func TestChartIsRight(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			v := map[string]any{}
			if err := yaml.Unmarshal([]byte(values), &v); err != nil {
				t.Fatal(err)
			}
			for _, m := range lint.AllWithKubeVersion(chartDir, v, "registry", &chartutil.DefaultCapabilities.KubeVersion).Messages {
				if m.Severity > support.InfoSev { // info: there is no icon
					t.Error(m)
				}
			}
			o, _ := mustRender(t, values, newCluster(), false)
			for key, obj := range o {
				if obj.GetNamespace() != "registry" {
					t.Errorf("%s is in namespace %q", key, obj.GetNamespace())
				}
			}
			full := "starling"
			switch name {
			case "much", "monitored":
				full = "nacos"
			case "named":
				full = "starling-registry"
			}
			s := get[*apps.StatefulSet](t, o, full)
			checkPods(t, s)
			checkServices(t, o, s, full)
			out := checkSettings(t, containerOf(t, s, full+"-0", "10.1.2.3"))
			wantLine(t, out, "advertise: 10.1.2.3 # flag")
			wantLine(t, out, "name: "+full+"-0 # flag")
			wantLine(t, out, "data-dir: /var/lib/starling # flag")
		})
	}
}

// checkPods checks what must be true of the pods, whatever the values.
func checkPods(t *testing.T, s *apps.StatefulSet) {
	t.Helper()
	pod := s.Spec.Template.Spec
	c := pod.Containers[0]
	isTrue := func(what string, ok bool) {
		t.Helper()
		if !ok {
			t.Errorf("not: %s", what)
		}
	}
	isTrue("nodes of a new cluster start together", s.Spec.PodManagementPolicy == apps.ParallelPodManagement)
	isTrue("updates wait for readiness", s.Spec.UpdateStrategy.Type == apps.RollingUpdateStatefulSetStrategyType && s.Spec.MinReadySeconds > 0)
	isTrue("the selector matches the pods", matches(s.Spec.Selector.MatchLabels, s.Spec.Template.Labels))
	isTrue("no variables of services", pod.EnableServiceLinks != nil && !*pod.EnableServiceLinks)
	isTrue("no token", pod.AutomountServiceAccountToken != nil && !*pod.AutomountServiceAccountToken)

	p, sec := pod.SecurityContext, c.SecurityContext
	isTrue("not root", *p.RunAsNonRoot && *p.RunAsUser == imageUser(t) && *p.RunAsGroup == imageUser(t) && *p.FSGroup == imageUser(t))
	isTrue("seccomp", p.SeccompProfile.Type == core.SeccompProfileTypeRuntimeDefault)
	isTrue("no rights", *sec.ReadOnlyRootFilesystem && !*sec.AllowPrivilegeEscalation && slices.Equal(sec.Capabilities.Drop, []core.Capability{"ALL"}) && sec.Capabilities.Add == nil)

	isTrue("requests", !c.Resources.Requests.Cpu().IsZero() && !c.Resources.Requests.Memory().IsZero())
	isTrue("no CPU limit", c.Resources.Limits.Cpu().IsZero())

	// Whoever fails a probe for readiness only gets no clients; for liveness it is
	// killed, so that must not depend on being ready.
	isTrue("probes", c.StartupProbe.HTTPGet.Path == "/livez" && c.LivenessProbe.HTTPGet.Path == "/livez" && c.ReadinessProbe.HTTPGet.Path == "/readyz")
	for _, h := range []*core.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		isTrue("a probe asks HTTP", h.HTTPGet.Port.StrVal == "http")
	}
	isTrue("the kill is slower than catching up", c.LivenessProbe.PeriodSeconds*c.LivenessProbe.FailureThreshold >= 60)

	drain := argument(t, c.Args, "--drain-timeout=")
	drainSeconds, err := strconv.ParseInt(strings.TrimSuffix(drain, "s"), 10, 64)
	if err != nil {
		t.Error(err)
	}
	sleep := c.Lifecycle.PreStop.Sleep.Seconds
	isTrue("there is time for the endpoints, the drain and the rest", sleep > 0 && *pod.TerminationGracePeriodSeconds >= sleep+drainSeconds+15)

	// Container ports are those that the program has by itself.
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	if want := map[string]int32{"http": 8848, "grpc": 9848, "grpc-peers": 9849, "tcp-raft": 7848, "tcp-gossip": 7946, "udp-gossip": 7946}; !maps.Equal(ports, want) {
		t.Errorf("ports %v", ports)
	}
	// What is mounted is where the arguments say, and nothing else is writable.
	mounts := map[string]core.VolumeMount{}
	for _, m := range c.VolumeMounts {
		mounts[m.Name] = m
		isTrue("a mount sees changes: no subPath", m.SubPath == "")
	}
	isTrue("data", mounts["data"].MountPath == argument(t, c.Args, "--data-dir=") && s.Spec.VolumeClaimTemplates[0].Name == "data")
	key := argument(t, c.Args, "--gossip-key-file=")
	isTrue("the secret", mounts["gossip-key"].MountPath == filepath.Dir(key) && mounts["gossip-key"].ReadOnly)
	isTrue("the secret is read by its group only", *pod.Volumes[0].Secret.DefaultMode == 0o440)
	isTrue("one name for all nodes", argument(t, c.Args, "--join=") == s.Spec.ServiceName)
}

func checkServices(t *testing.T, o objects, s *apps.StatefulSet, full string) {
	t.Helper()
	peers, clients := get[*core.Service](t, o, full+"-peers"), get[*core.Service](t, o, full)
	if s.Spec.ServiceName != peers.Name || peers.Spec.ClusterIP != core.ClusterIPNone || !peers.Spec.PublishNotReadyAddresses {
		t.Error("nodes do not find each other by the Service for peers")
	}
	if clients.Spec.PublishNotReadyAddresses || clients.Spec.ClusterIP != "" {
		t.Error("the Service for clients has nodes that are not ready")
	}
	for _, svc := range []*core.Service{peers, clients} {
		if !matches(svc.Spec.Selector, s.Spec.Template.Labels) {
			t.Errorf("%s does not select the pods", svc.Name)
		}
		for _, p := range svc.Spec.Ports {
			if !slices.ContainsFunc(s.Spec.Template.Spec.Containers[0].Ports, func(c core.ContainerPort) bool {
				return c.Name == p.TargetPort.StrVal && (c.Protocol == p.Protocol || c.Protocol == "")
			}) {
				t.Errorf("port %s of %s leads nowhere", p.Name, svc.Name)
			}
		}
	}
	// What SDKs rely on, for whoever comes from outside too.
	http, grpc := clients.Spec.Ports[0], clients.Spec.Ports[1]
	if grpc.Port != http.Port+1000 || http.NodePort != 0 && grpc.NodePort != http.NodePort+1000 || http.TargetPort.StrVal != "http" || grpc.TargetPort.StrVal != "grpc" {
		t.Errorf("gRPC is not 1000 above HTTP: %+v", clients.Spec.Ports)
	}
	if b, ok := o["PodDisruptionBudget "+full].(*policy.PodDisruptionBudget); ok &&
		(b.Spec.MaxUnavailable.IntVal != 1 || !matches(b.Spec.Selector.MatchLabels, s.Spec.Template.Labels)) {
		t.Errorf("the budget is %+v", b.Spec)
	}
	if m, ok := o["ServiceMonitor "+full].(*monitoring.ServiceMonitor); ok && !matches(m.Spec.Selector.MatchLabels, peers.Labels) {
		t.Errorf("the monitor selects %v", m.Spec.Selector.MatchLabels)
	} else if ok {
		e := m.Spec.Endpoints[0]
		if e.Port != "http" || e.Path != "/metrics" || len(e.RelabelConfigs) != 2 || e.RelabelConfigs[0].TargetLabel != "job" || *e.RelabelConfigs[0].Replacement != "starling/registry/"+full {
			t.Errorf("the monitor asks %+v", e)
		}
	}
	if n, ok := o["NetworkPolicy "+full].(*networking.NetworkPolicy); ok && (!matches(n.Spec.PodSelector.MatchLabels, s.Spec.Template.Labels) ||
		!matches(n.Spec.Ingress[0].From[0].PodSelector.MatchLabels, s.Spec.Template.Labels) || n.Spec.Ingress[0].Ports != nil) {
		t.Errorf("the policy is %+v", n.Spec)
	}
	if pod, ok := o["Pod "+full+"-test"].(*core.Pod); !ok || matches(clients.Spec.Selector, pod.Labels) {
		t.Error("helm test is missing, or would be a node")
	}
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}

// argument is the value of --flag=value; "" if it is not given.
func argument(t *testing.T, args []string, flag string) string {
	t.Helper()
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, flag); ok {
			return v
		}
	}
	return ""
}

// stored is an object as a cluster keeps it.
func stored(t *testing.T, obj meta.Object) runtime.Object {
	t.Helper()
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: m}
}

// The number of founders and the secret are those of the first installation, so that
// scaling changes nothing but the number of pods: a change of the template would
// restart them all, another secret would lock them out.
func TestChartKeepsWhatItBeganWith(t *testing.T) {
	for _, begun := range []int{1, 3} {
		first, _ := mustRender(t, fmt.Sprintf("replicas: %d", begun), newCluster(), false)
		set, secret := get[*apps.StatefulSet](t, first, "starling"), get[*core.Secret](t, first, "starling-gossip-key")
		if got := argument(t, set.Spec.Template.Spec.Containers[0].Args, "--expect="); got != strconv.Itoa(begun) {
			t.Errorf("a cluster of %d begins with --expect=%s", begun, got)
		}
		if key, err := base64.StdEncoding.DecodeString(string(secret.Data["key"])); err != nil || len(key) != 32 {
			t.Errorf("the secret has %d bytes, %v", len(key), err)
		}
		if secret.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Error("the secret goes with the release, its cluster does not")
		}
		there := newCluster(stored(t, set), stored(t, secret))
		for _, replicas := range []int32{1, 3, 5} {
			then, notes := mustRender(t, fmt.Sprintf("replicas: %d", replicas), there, true)
			scaled := get[*apps.StatefulSet](t, then, "starling")
			if *scaled.Spec.Replicas != replicas {
				t.Errorf("%d replicas", *scaled.Spec.Replicas)
			}
			if scaled.Spec.Replicas = set.Spec.Replicas; !reflect.DeepEqual(scaled, set) {
				t.Errorf("scaling from %d to %d changes more than that: %+v", begun, replicas, scaled)
			}
			if again := get[*core.Secret](t, then, "starling-gossip-key"); !bytes.Equal(again.Data["key"], secret.Data["key"]) {
				t.Error("an upgrade changes the secret")
			}
			if warned := strings.Contains(notes, "WARNING: expect is 1"); warned != (begun == 1 && replicas > 1) {
				t.Errorf("from %d to %d: %s", begun, replicas, notes)
			}
		}
	}
	if _, notes := mustRender(t, `{replicas: 2, expect: 3}`, newCluster(), false); !strings.Contains(notes, "begins with 3 nodes") || !strings.Contains(notes, "two nodes have no majority") {
		t.Errorf("no warnings: %s", notes)
	}
	joining, _ := mustRender(t, variants["joining"], newCluster(), true)
	for _, a := range get[*apps.StatefulSet](t, joining, "starling").Spec.Template.Spec.Containers[0].Args {
		if strings.HasPrefix(a, "--expect") {
			t.Errorf("expect: 0 gives %s", a)
		}
	}
}

// What makes no sense is refused, by the schema.
func TestChartRefuses(t *testing.T) {
	for _, values := range []string{
		`replica: 3`, `replicas: 0`, `replicas: "3"`, `expect: -1`,
		`settings: {join: other}`, `settings: {port: 9000}`, `settings: {drain-timeout: 1m}`, `settings: {"--log-level": debug}`, `settings: {log-level: {}}`,
		`service: {port: 65000}`, `service: {nodePort: 32000}`, `service: {nodePort: 8848}`, `service: {type: ExternalName}`,
		`antiAffinity: maybe`, `stop: {endpointsSeconds: 0}`, `persistence: {size: much}`, `goMemoryLimit: 90%`, `gossipKey: {key: "../x"}`,
	} {
		if _, _, err := render(t, values, newCluster(), false); err == nil {
			t.Errorf("%s is taken", values)
		}
	}
}

// The rules in the chart are those of deploy/prometheus: Helm takes no files from
// outside a chart.
func TestChartHasTheAlerts(t *testing.T) {
	want, err := os.ReadFile("../prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := chartDir + "/files/alerts.yaml"
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v; the rules differ: make deploy-manifests", err)
	}
	o, _ := mustRender(t, `prometheusRule: {enabled: true, labels: {release: prometheus}}`, newCluster(), false)
	r := get[*monitoring.PrometheusRule](t, o, "starling")
	n := 0
	for _, g := range r.Spec.Groups {
		n += len(g.Rules)
	}
	if n == 0 || r.Labels["release"] != "prometheus" {
		t.Errorf("%d rules, labels %v", n, r.Labels)
	}
}
