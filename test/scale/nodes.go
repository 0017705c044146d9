package scale

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sync/errgroup"
)

// images is how many images kubelet lists in a Node's status (its --node-status-max-images).
const images = 50

// Network and NetworkV6 are the clusters' pod networks.
const Network, NetworkV6 = "10.0.0.0/7", "fd10::/16"

// Name is virtual node i's. Node 0 is the one on which the agent runs.
func Name(i int) string { return fmt.Sprintf("scale-%05d", i) }

// Subnet is virtual node i's podCIDR.
func Subnet(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10 + byte(i>>16), byte(i >> 8), byte(i), 0}), 24)
}

// SubnetV6 is virtual node i's second podCIDR.
func SubnetV6(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x10, 0, byte(i >> 16), 0, 0, byte(i >> 8), byte(i)}), 64)
}

// Underlay is where peers reach virtual node i.
func Underlay(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)})
}

func underlayV6(i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfd, 0x11, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
}

// MAC is the address of virtual node i's VTEP.
func MAC(i int) string {
	return fmt.Sprintf("02:00:00:%02x:%02x:%02x", byte(i>>16), byte(i>>8), byte(i))
}

func macV6(i int) string {
	return fmt.Sprintf("02:06:00:%02x:%02x:%02x", byte(i>>16), byte(i>>8), byte(i))
}

// prefix is that of the annotations.
const prefix = "flannel.alpha.coreos.com/"

// node is a Node object as large as a cloud provider's: 50 images, five conditions, labels, annotations.
func (c *Cluster) node(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Name(i), Labels: labels(i), Annotations: map[string]string{
		"node.alpha.kubernetes.io/ttl":                           "0",
		"volumes.kubernetes.io/controller-managed-attach-detach": "true",
		"csi.volume.kubernetes.io/nodeid":                        fmt.Sprintf(`{"ebs.csi.example.com":"i-%017x"}`, i),
	}}}
	n.Spec = corev1.NodeSpec{
		PodCIDR:    Subnet(i).String(),
		PodCIDRs:   []string{Subnet(i).String()},
		ProviderID: fmt.Sprintf("cloud:///zone-a/i-%017x", i),
	}
	if i > 0 {
		n.Annotations[prefix+"kube-subnet-manager"] = "true"
		n.Annotations[prefix+"backend-type"] = "vxlan"
		n.Annotations[prefix+"backend-data"] = fmt.Sprintf(`{"VNI":1,"VtepMAC":"%s"}`, MAC(i))
		n.Annotations[prefix+"public-ip"] = Underlay(i).String()
		if c.dual {
			n.Annotations[prefix+"backend-v6-data"] = fmt.Sprintf(`{"VNI":1,"VtepMAC":"%s"}`, macV6(i))
			n.Annotations[prefix+"public-ipv6"] = underlayV6(i).String()
		}
	}
	if c.dual {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, SubnetV6(i).String())
	}
	n.Status = status(i)
	return n
}

func labels(i int) map[string]string {
	return map[string]string{
		"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
		"kubernetes.io/hostname": Name(
			i,
		), "node.kubernetes.io/instance-type": "m5.2xlarge", "beta.kubernetes.io/instance-type": "m5.2xlarge",
		"topology.kubernetes.io/region": "eu-central-1", "topology.kubernetes.io/zone": "eu-central-1a", "example.com/nodegroup": "workers-a",
	}
}

func status(i int) corev1.NodeStatus {
	s := corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: Underlay(i).String()},
			{Type: corev1.NodeHostName, Address: Name(i)},
		},
		Capacity: resources("8", "32386544Ki"), Allocatable: resources("7910m", "31366192Ki"),
		NodeInfo: corev1.NodeSystemInfo{
			MachineID:               strings.Repeat("ec2a", 8),
			SystemUUID:              "ec2a1f3c-0000-4000-8000-00000000beef",
			BootID:                  "5f1f1a2c-9a57-4e7b-a9d8-3a1d3d0f6a11",
			KernelVersion:           "6.18.5-cloud-amd64",
			OSImage:                 "Debian GNU/Linux 13 (trixie)",
			ContainerRuntimeVersion: "containerd://2.1.4",
			KubeletVersion:          "v1.36.3",
			OperatingSystem:         "linux",
			Architecture:            "amd64",
		},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
	}
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady} {
		s.Conditions = append(
			s.Conditions,
			corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Now(),
				LastTransitionTime: metav1.Now(), Reason: "KubeletHasNoPressure", Message: "kubelet has no pressure and is posting ready status"},
		)
	}
	for k := range images {
		repo := fmt.Sprintf("registry.example.com/team-%02d/service-%02d", k%7, k)
		s.Images = append(s.Images, corev1.ContainerImage{SizeBytes: int64(1e8 + k),
			Names: []string{fmt.Sprintf("%s@sha256:%064x", repo, k*7919), fmt.Sprintf("%s:v1.%d.0", repo, k)}})
	}
	return s
}

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory),
		corev1.ResourcePods: resource.MustParse(
			"110",
		),
		corev1.ResourceEphemeralStorage: resource.MustParse("83873772Ki"),
	}
}

// writers is how many requests of Join, Leave and Heartbeat are under way at a time.
const writers = 16

func (c *Cluster) each(ctx context.Context, from, to int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := from; i < to; i++ {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// Join creates the Node objects [from, to), all of them nodes that have been published by an agent, but node 0.
func (c *Cluster) Join(ctx context.Context, from, to int) error {
	return c.each(ctx, from, to, func(ctx context.Context, i int) error {
		n, err := c.api.Nodes().Create(ctx, c.node(i), metav1.CreateOptions{FieldManager: "kubelet"})
		if err == nil && i > 0 {
			err = c.publish(ctx, i, n)
		}
		return err
	})
}

// Leave deletes the Node objects [from, to).
func (c *Cluster) Leave(ctx context.Context, from, to int) error {
	return c.each(ctx, from, to, func(ctx context.Context, i int) error {
		return errors.Join(c.withdraw(ctx, i), c.api.Nodes().Delete(ctx, Name(i), metav1.DeleteOptions{}))
	})
}

// Heartbeat updates the status of the nodes [from, to), as kubelet does every five minutes.
func (c *Cluster) Heartbeat(ctx context.Context, from, to int) error {
	now := time.Now().UTC().Format(time.RFC3339)
	var conditions []string
	for _, t := range []string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		conditions = append(conditions, fmt.Sprintf(`{"type":%q,"lastHeartbeatTime":%q}`, t, now))
	}
	patch := []byte(`{"status":{"conditions":[` + strings.Join(conditions, ",") + `]}}`)
	return c.each(ctx, from, to, func(ctx context.Context, i int) error {
		_, err := c.api.Nodes().
			Patch(ctx, Name(i), types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: "kubelet"}, "status")
		return err
	})
}
