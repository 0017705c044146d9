package fake

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Who owns everything, and whom the instances are.
const (
	awsOwner     = "123456789012"
	awsRole      = "twill-node"
	awsRoleKeyID = "ASIATWILLNODEROLE000"
)

// The header names are Amazon's.
const (
	awsTokenHeader = "X-aws-ec2-metadata-token"
	awsTTLHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
)

// The role's secrets are made from the network's ID.
func (a *aws) roleSecret() string { return awsDigest("secret of " + a.ID)[:40] }
func (a *aws) roleToken() string  { return "IQoJ" + awsDigest("token of "+a.ID) }

// metadata serves the instance metadata of the caller, to requests with a session token.
func (a *aws) metadata(w http.ResponseWriter, r *http.Request) {
	nic, ok := a.Caller(r)
	if !ok {
		http.Error(w, "no instance has the address "+r.RemoteAddr, http.StatusNotFound)
		return
	}
	token := "AQAEA" + awsDigest("session of "+nic.Instance+nic.ID)
	if r.URL.Path == "/latest/api/token" {
		awsGrant(w, r, token)
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/latest/meta-data/")
	switch {
	case r.Header.Get(awsTokenHeader) != token:
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	case r.Method != http.MethodGet:
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		return
	case path == "network/interfaces/macs/":
		if err := a.Call("Self"); err != nil {
			http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
			return
		}
	}
	text, found := a.entry(nic, path)
	if !ok || !found {
		http.Error(w, "Not Found", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = io.WriteString(w, text)
}

// awsGrant answers the request of a session token.
func awsGrant(w http.ResponseWriter, r *http.Request, token string) {
	ttl, err := strconv.Atoi(r.Header.Get(awsTTLHeader))
	switch {
	case r.Method != http.MethodPut:
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
	case r.Header.Get("X-Forwarded-For") != "":
		http.Error(w, "Forbidden", http.StatusForbidden)
	case err != nil || ttl < 1 || ttl > 21600:
		http.Error(w, "Bad Request", http.StatusBadRequest)
	default:
		w.Header().Set(awsTTLHeader, strconv.Itoa(ttl))
		_, _ = io.WriteString(w, token)
	}
}

// entry returns an entry of an instance's metadata.
func (a *aws) entry(nic NIC, path string) (string, bool) {
	switch path {
	case "instance-id":
		return nic.Instance, nic.Instance != ""
	case "mac":
		return nic.mac(), true
	case "placement/region":
		return a.Region, true
	case "placement/availability-zone":
		return a.Region + "a", true
	case "iam/security-credentials/":
		return awsRole, true
	case "iam/security-credentials/" + awsRole:
		now := time.Now().UTC()
		return fmt.Sprintf(`{"Code":"Success","LastUpdated":%q,"Type":"AWS-HMAC","AccessKeyId":%q,"SecretAccessKey":%q,"Token":%q,"Expiration":%q}`,
				now.Format(time.RFC3339), awsRoleKeyID, a.roleSecret(), a.roleToken(), now.Add(6*time.Hour).Format(time.RFC3339)),
			true
	}
	rest, ok := strings.CutPrefix(path, "network/interfaces/macs/")
	if !ok {
		return "", false
	}
	var list []string
	for _, n := range a.NICs() {
		if n.ID != nic.ID && (n.Instance == "" || n.Instance != nic.Instance) {
			continue
		}
		if name, ok := strings.CutPrefix(rest, n.mac()+"/"); ok {
			text := a.nicEntry(n, name)
			return text, text != ""
		}
		list = append(list, n.mac()+"/")
	}
	return strings.Join(list, "\n"), rest == ""
}

// nicEntry returns an entry of a network interface, empty if there is none.
func (a *aws) nicEntry(n NIC, name string) string {
	is4 := func(addr netip.Addr) bool { return addr.Is4() }
	switch name {
	case "interface-id":
		return n.ID
	case "mac":
		return n.mac()
	case "subnet-id":
		return n.Subnet
	case "vpc-id":
		return a.ID
	case "owner-id":
		return awsOwner
	case "local-ipv4s":
		return awsLines(n.Addrs, is4)
	case "ipv6s":
		return awsLines(n.Addrs, netip.Addr.Is6)
	case "vpc-ipv4-cidr-blocks":
		return awsLines(a.CIDRs, func(p netip.Prefix) bool { return is4(p.Addr()) })
	case "vpc-ipv6-cidr-blocks":
		return awsLines(a.CIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() })
	}
	return ""
}

// awsLines returns those that f is true for, one a line.
func awsLines[T fmt.Stringer](all []T, f func(T) bool) string {
	var texts []string
	for _, x := range all {
		if f(x) {
			texts = append(texts, x.String())
		}
	}
	return strings.Join(slices.Clip(texts), "\n")
}
