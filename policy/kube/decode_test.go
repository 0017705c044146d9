package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/manifest"
)

// onePod is a Pod with all that is read, and more.
func onePod(i int) corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("space-%d", i%7), Name: fmt.Sprintf("web-%05d", i), ResourceVersion: fmt.Sprint(1000 + i),
			UID:               types.UID(fmt.Sprintf("6d2f3f6c-9b1c-4a6e-8f0a-%012d", i)),
			CreationTimestamp: metav1.Unix(1_700_000_000+int64(i), 0),
			Labels:            map[string]string{"app": fmt.Sprintf("web-%d", i%100), "pod-template-hash": fmt.Sprintf("7c9f8b%04d", i%100), "empty": ""},
			Annotations:       map[string]string{"note": strings.Repeat("n", 200)},
			ManagedFields:     []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(fmt.Sprintf("{\"f\": %q}", strings.Repeat("f", 1500)))}},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("node-%d", i%100),
			Containers: []corev1.Container{
				{Name: "a", Image: "registry/web:1", Env: []corev1.EnvVar{{Name: "A", Value: strings.Repeat("v", 300)}},
					Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}, {ContainerPort: 1, Protocol: "TCP"}}},
				{Name: "b", Ports: []corev1.ContainerPort{{Name: "dns", ContainerPort: 53, Protocol: "UDP", HostPort: 5353}, {Name: "plain", ContainerPort: 65535}}},
			},
			InitContainers: []corev1.Container{
				{Name: "c", Ports: []corev1.ContainerPort{{Name: "gone", ContainerPort: 2}}},
				{Name: "d", RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "proxy", ContainerPort: 15000, Protocol: "TCP"}}},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, HostIP: "192.0.2.1", PodIP: "10.244.1.1",
			PodIPs:            []corev1.PodIP{{IP: fmt.Sprintf("10.244.%d.%d", i>>8&255, i&255)}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "a", ImageID: strings.Repeat("i", 100)}},
		},
	}
	return p
}

// variants are Pods that differ from onePod in what is read.
func variants() (all []corev1.Pod) {
	for i, change := range []func(*corev1.Pod){
		func(*corev1.Pod) {},
		func(p *corev1.Pod) { p.Labels = nil },
		func(p *corev1.Pod) { p.Spec = corev1.PodSpec{HostNetwork: true} },
		func(p *corev1.Pod) { p.Status = corev1.PodStatus{} },
		func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::1"}) },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending; p.Spec.NodeName = "" },
		func(p *corev1.Pod) { p.Spec.InitContainers = nil; p.Spec.Containers = p.Spec.Containers[:1] },
	} {
		p := onePod(i)
		change(&p)
		all = append(all, p)
	}
	return all
}

// want is the same pod as the manifests' reader sees it. What has no name is no port for policies.
func want(t testing.TB, p corev1.Pod) *policy.Pod {
	t.Helper()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var s policy.Snapshot
	if err := manifest.Read(bytes.NewReader(text), &s); err != nil {
		t.Fatal(err)
	}
	s.Pods[0].Ports = slices.DeleteFunc(s.Pods[0].Ports, func(p policy.Port) bool { return p.Name == "" })
	return s.Pods[0]
}

// dump shows all of a pod.
func dump(p *policy.Pod) string {
	type fields policy.Pod
	return fmt.Sprintf("%+v", fields(*p))
}

// encoded is a list as the API server sends it.
func encoded(t testing.TB, pods ...corev1.Pod) []byte {
	t.Helper()
	list := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "4711"}, Items: pods}
	raw, err := list.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Raw: raw, ContentType: "application/x"}
	body, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), body...)
}

// TestDecode: what the protobuf of a Pod says is what its JSON says, in an event and in a list.
func TestDecode(t *testing.T) {
	var with shared
	list, err := readPods(iotest.OneByteReader(bytes.NewReader(encoded(t, variants()...))), &with)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != len(variants()) || list.ResourceVersion != "4711" {
		t.Fatalf("got %d pods of version %q", len(list.Items), list.ResourceVersion)
	}
	for i, p := range variants() {
		if got := list.Items[i]; !got.Equal(want(t, p)) {
			t.Errorf("in a list, pod %d became %s, want %s", i, dump(&got.Pod), dump(want(t, p)))
		}
		raw, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		one := pod{version: "old"}
		one.Reset()
		if err := one.Unmarshal(raw); err != nil {
			t.Fatal(err)
		}
		if got := with.entry(&one); !got.Equal(want(t, p)) || one.GetObjectMeta().GetResourceVersion() != p.ResourceVersion {
			t.Errorf("in an event, pod %d became %s, want %s", i, dump(&got.Pod), dump(want(t, p)))
		}
	}
}

// TestShared: pods of one template share it for as long as one is there, and no longer.
func TestShared(t *testing.T) {
	var with shared
	list, err := readPods(bytes.NewReader(encoded(t, onePod(1), onePod(101), onePod(2))), &with)
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := list.Items[0], list.Items[1], list.Items[2]
	if a.of != b.of || a.of == c.of || len(with.templates) != 2 {
		t.Errorf("%d templates for pods of two", len(with.templates))
	}
	with.release(a)
	if len(with.templates) != 2 {
		t.Error("a template went before its last pod")
	}
	with.release(b)
	with.release(c)
	if len(with.templates) != 0 {
		t.Errorf("%d templates are left of no pods", len(with.templates))
	}
	for i := range maxTexts + 1 {
		with.text(fmt.Append(nil, "node-", i))
	}
	if len(with.texts) > maxTexts {
		t.Errorf("%d texts are kept", len(with.texts))
	}
}

// TestListCut: a list that ends early is an error wherever it ends, and not a shorter list.
func TestListCut(t *testing.T) {
	whole := encoded(t, onePod(1), onePod(2))
	envelope := len("application/x") + 2 + 2 // content type and encoding come behind the list
	for n := range len(whole) - envelope {
		if list, err := readPods(bytes.NewReader(whole[:n]), &shared{}); err == nil {
			t.Fatalf("the first %d of %d bytes are a list of %d pods", n, len(whole), len(list.Items))
		}
	}
	for _, bad := range []string{"", "{}", "k8s\x00\x08\x01", "k8s\x00\x12\x02\x08\x01", "k8s\x00\x12\x06\x12\xff\xff\xff\xff\x7f"} {
		if _, err := readPods(strings.NewReader(bad), &shared{}); err == nil {
			t.Errorf("%q is a list", bad)
		}
	}
}

// FuzzDecode: whatever is decoded does not panic, and is decoded the same in one piece and in a list.
func FuzzDecode(f *testing.F) {
	for _, p := range variants() {
		raw, err := p.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte{0x0a, 0x02, 0x5a, 0x00, 0xa2, 0x01, 0x01})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var with shared
		var p pod
		err := p.Unmarshal(raw)
		_, _ = readPods(bytes.NewReader(raw), &with)
		envelope := runtime.Unknown{Raw: slices.Concat([]byte{0x0a, 0x03, 0x12, 0x01, '1', 0x12}, appendSize(len(raw)), raw)}
		body, _ := envelope.Marshal()
		list, listErr := readPods(bytes.NewReader(append([]byte("k8s\x00"), body...)), &with)
		if (err == nil) != (listErr == nil) {
			t.Fatalf("alone: %v, in a list: %v", err, listErr)
		}
		if err == nil && (len(list.Items) != 1 || !list.Items[0].Equal(&with.entry(&p).Pod)) {
			t.Errorf("in a list %+v, alone %+v", list.Items, p)
		}
		var theirs corev1.Pod
		if err == nil && theirs.Unmarshal(raw) == nil && (theirs.Name != p.Name || string(theirs.UID) != p.UID || theirs.Spec.HostNetwork != p.HostNetwork) {
			t.Errorf("got %+v, others read %+v", p, theirs.ObjectMeta)
		}
	})
}

func appendSize(n int) (b []byte) {
	for ; n > 127; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}
