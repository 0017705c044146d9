package controlplane

import (
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/twill-net/twill/netstate"
)

const (
	tokenFile = "tokens.csv"
	logFile   = "kube-apiserver.log"
)

func (cfg APIServerConfig) withDefaults() (APIServerConfig, error) {
	var err error
	if cfg.Binary == "" {
		if cfg.Binary, err = FindBinary("kube-apiserver"); err != nil {
			return cfg, err
		}
	}
	if !cfg.Listen.Addr().IsValid() {
		cfg.Listen = netip.AddrPortFrom(loopback(netstate.IPv4), cfg.Listen.Port())
	}
	if cfg.Listen.Port() == 0 {
		port, err := freePort(cfg.Listen.Addr())
		if err != nil {
			return cfg, err
		}
		cfg.Listen = netip.AddrPortFrom(cfg.Listen.Addr(), port)
	}
	if !cfg.Advertise.IsValid() {
		cfg.Advertise = advertised(cfg.Listen.Addr())
	}
	if len(cfg.ServiceCIDRs) == 0 {
		cfg.ServiceCIDRs = []netip.Prefix{serviceCIDR(cfg.Advertise)}
	}
	return cfg, nil
}

func advertised(listen netip.Addr) netip.Addr {
	if listen.IsUnspecified() {
		return loopback(netstate.FamilyOf(listen))
	}
	return listen
}

func loopback(f netstate.Family) netip.Addr {
	if f == netstate.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// serviceCIDR is in the family of the advertised address: kube-apiserver insists on that.
func serviceCIDR(advertise netip.Addr) netip.Prefix {
	if advertise.Is6() {
		return netip.MustParsePrefix("fd00:10:96::/112")
	}
	return netip.MustParsePrefix("10.96.0.0/16")
}

func (cfg APIServerConfig) url() string {
	return "https://" + netip.AddrPortFrom(cfg.Advertise, cfg.Listen.Port()).String()
}

// servingNames are all names that anybody reaches the server by, pods included: the first service address is its.
func (cfg APIServerConfig) servingNames() []string {
	names := []string{
		"localhost", "127.0.0.1", "::1", cfg.Advertise.String(),
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
	if a := cfg.Listen.Addr(); !a.IsUnspecified() {
		names = append(names, a.String())
	}
	for _, cidr := range cfg.ServiceCIDRs {
		names = append(names, cidr.Masked().Addr().Next().String())
	}
	return append(names, cfg.Names...)
}

func (cfg APIServerConfig) args() []string {
	in := func(name string) string { return filepath.Join(cfg.Dir, name) }
	args := []string{
		"--etcd-servers=" + strings.Join(cfg.EtcdEndpoints, ","),
		"--bind-address=" + cfg.Listen.Addr().String(),
		"--secure-port=" + strconv.Itoa(int(cfg.Listen.Port())),
		"--advertise-address=" + cfg.Advertise.String(),
		"--service-cluster-ip-range=" + joinPrefixes(cfg.ServiceCIDRs),
		"--cert-dir=" + cfg.Dir,
		"--tls-cert-file=" + in("tls.crt"),
		"--tls-private-key-file=" + in("tls.key"),
		"--client-ca-file=" + in("ca.crt"),
		"--token-auth-file=" + in(tokenFile),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + in("sa.key"), // its public half
		"--service-account-signing-key-file=" + in("sa.key"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--profiling=false",
	}
	if cfg.Advertise.IsLoopback() {
		// Endpoints must not be loopback addresses: the reconciler would log an error every ten seconds.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	return append(args, cfg.Flags...)
}

func joinPrefixes(prefixes []netip.Prefix) string {
	var all []string
	for _, p := range prefixes {
		all = append(all, p.String())
	}
	return strings.Join(all, ",")
}
