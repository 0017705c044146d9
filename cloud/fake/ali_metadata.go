package fake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

const aliMetadataToken = "metadata-token"

// metadata answers a request of the metadata service.
func (a *ali) metadata(w http.ResponseWriter, r *http.Request) {
	nic, ok := a.o.Caller(r)
	switch {
	case !ok:
		http.NotFound(w, r)
	case r.URL.Path == "/latest/api/token":
		ttl, err := strconv.Atoi(r.Header.Get("X-Aliyun-Ecs-Metadata-Token-Ttl-Seconds"))
		if r.Method != http.MethodPut || err != nil || ttl < 1 || ttl > 21600 {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, aliMetadataToken)
	case r.Method != http.MethodGet:
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	case a.o.TokenOnly && r.Header.Get("X-Aliyun-Ecs-Metadata-Token") != aliMetadataToken:
		http.Error(w, "forbidden", http.StatusForbidden)
	default:
		text, ok := a.item(nic, strings.TrimPrefix(r.URL.Path, "/latest/meta-data/"))
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, text)
	}
}

// item returns an item of a NIC's metadata.
func (a *ali) item(n NIC, path string) (string, bool) {
	if rest, ok := strings.CutPrefix(path, "network/interfaces/macs/"); ok {
		return a.nicItem(n, rest)
	}
	if rest, ok := strings.CutPrefix(path, "ram/security-credentials/"); ok && a.o.Role != "" {
		switch rest {
		case "":
			return a.o.Role, true
		case a.o.Role:
			return a.lend(), true
		}
	}
	text, ok := map[string]string{"region-id": a.o.Region, "instance-id": n.ID, "vpc-id": a.ID, "vswitch-id": n.Subnet,
		"mac": n.MAC}[path]
	return text, ok
}

func (a *ali) nicItem(n NIC, path string) (string, bool) {
	if path == "" {
		return n.MAC + "/", true
	}
	item, ok := strings.CutPrefix(path, n.MAC+"/")
	if !ok {
		return "", false
	}
	var four, six []netip.Addr
	for _, addr := range n.Addrs {
		if addr.Is4() {
			four = append(four, addr)
		} else {
			six = append(six, addr)
		}
	}
	switch item {
	case "network-interface-id":
		return n.eni(), true
	case "vpc-id":
		return a.ID, true
	case "vswitch-id":
		return n.Subnet, true
	case "private-ipv4s":
		return aliAddrs(four), true
	case "ipv6s":
		return aliAddrs(six), len(six) > 0
	case "vpc-cidr-block":
		return a.o.Block.String(), a.o.Block.IsValid()
	case "vswitch-cidr-block":
		block, ok := a.o.VSwitches[n.Subnet]
		return block.String(), ok
	}
	return "", false
}

func aliAddrs(addrs []netip.Addr) string {
	text, err := json.Marshal(addrs)
	if err != nil {
		return ""
	}
	return string(text)
}

// lend returns an access key of the role.
func (a *ali) lend() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	number := len(a.lent) + 1
	id := fmt.Sprintf("STS.%s.%d", a.o.Role, number)
	lent := aliLent{secret: fmt.Sprintf("lent-secret-%d", number), token: fmt.Sprintf("lent-token-%d+/=", number),
		until: time.Now().Add(time.Hour)}
	a.lent[id] = lent
	text, err := json.Marshal(map[string]any{"Code": "Success", "AccessKeyId": id, "AccessKeySecret": lent.secret,
		"SecurityToken": lent.token, "Expiration": lent.until.UTC().Format(time.RFC3339)})
	if err != nil {
		return ""
	}
	return string(text)
}
