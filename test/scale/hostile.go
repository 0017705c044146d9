package scale

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// hostileAddrs are what a node may say that it has, and no node can have.
var hostileAddrs = []string{"255.255.255.255", "172.31.255.255", "240.0.0.1", "0.1.2.3", "127.0.0.1"}

// hostileCIDRs are what a node may say that its podCIDR is.
var hostileCIDRs = []string{"10.0.1.7/32", "10.0.0.0/9", "10.0.2.0/24", "10.128.0.0/9", "10.9.9.9/32"}

// Hostile writes virtual node i's Node, as its kubelet could, until ctx is done: every time another address
// that no host has, its own, or another node's, and its own or another node's MAC, and a record of who wrote
// which field of so many bytes. It returns how many writes were taken.
func (c *Cluster) Hostile(ctx context.Context, i, perSecond, size int) (writes int, err error) {
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for ; ; writes++ {
		_, err := c.api.Nodes().
			Patch(ctx, Name(i), types.MergePatchType, lie(i, writes, size), metav1.PatchOptions{FieldManager: "kubelet"})
		if ctx.Err() != nil {
			return writes, nil
		}
		if err != nil {
			return writes, errors.Join(err, ctx.Err())
		}
		select {
		case <-ctx.Done():
			return writes, nil
		case <-tick.C:
		}
	}
}

// lie is the patch of one write.
func lie(i, n, size int) []byte {
	addr, mac := Underlay(i).String(), MAC(i)
	switch n % 3 {
	case 0:
		addr = hostileAddrs[n/3%len(hostileAddrs)]
	case 1:
		addr = Underlay(i + 1 + n%7).String()
	}
	if n%2 == 0 {
		mac = MAC(i + 1 + n%5)
	}
	var members strings.Builder
	for m := 0; members.Len() < size; m++ {
		fmt.Fprintf(&members, `,"v:\"100.%d.%d.0/24\"":{}`, m>>8&255, m&255)
	}
	fields := fmt.Sprintf(
		`{"f:spec":{"f:podCIDRs":{".":{},"v:\"%s\"":{}%s}}}`,
		hostileCIDRs[n%len(hostileCIDRs)],
		members.String(),
	)
	const prefix = "flannel.alpha.coreos.com/"
	return fmt.Appendf(
		nil,
		`{"metadata":{"annotations":{"%spublic-ip":%q,"%sbackend-data":"{\"VNI\":1,\"VtepMAC\":\"%s\"}"},"managedFields":[{"manager":"kubelet",`+
			`"operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","time":"2020-01-01T00:00:00Z","fieldsV1":%s}]}}`,
		prefix,
		addr,
		prefix,
		mac,
		fields,
	)
}
