package firewall

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Pick chooses the mode, and returns the reason. The config's EnableNFTables wins unless it is nil. Otherwise it is
// nftables where the kernel has nf_tables, unless legacy iptables tables have rules: a DROP there can only be
// overruled from there.
func Pick(configured *bool) (netstate.Mode, string, error) {
	f := New()
	defer f.Close()
	return f.pick(configured)
}

func (f *Firewall) pick(configured *bool) (netstate.Mode, string, error) {
	kernel := f.tryNF()
	if errors.Is(kernel, unix.EPERM) {
		return 0, "", fmt.Errorf("choose a firewall mode: %w: the agent needs CAP_NET_ADMIN", kernel)
	}
	if configured != nil {
		return configuredMode(*configured, kernel, f.iptables)
	}
	inUse, err := f.iptables.legacyInUse()
	switch {
	case inUse:
		return netstate.IPTables, "legacy iptables tables are in use", nil
	case kernel == nil && err != nil:
		return netstate.NFTables, "the kernel has nf_tables; legacy iptables tables cannot be read: " + err.Error(), nil
	case kernel == nil:
		return netstate.NFTables, "the kernel has nf_tables", nil
	}
	if _, err := f.iptables.command(legacy, netstate.IPv4); err != nil {
		return 0, "", fmt.Errorf("choose a firewall mode: want a kernel with nf_tables or the iptables binaries: %w",
			errors.Join(kernel, err))
	}
	return netstate.IPTables, "the kernel has no nf_tables", nil
}

func configuredMode(nft bool, kernel error, iptables *runner) (netstate.Mode, string, error) {
	if nft {
		if kernel != nil {
			return 0, "", fmt.Errorf("use nftables as the config says: %w", kernel)
		}
		return netstate.NFTables, "the config says EnableNFTables", nil
	}
	if _, err := iptables.command(iptables.variant(), netstate.IPv4); err != nil {
		return 0, "", fmt.Errorf("use iptables as the config says: %w", err)
	}
	return netstate.IPTables, "the config says EnableNFTables false", nil
}

// tryNF writes a rule with all that ours are made of into a table that the same transaction deletes again: a
// kernel can have nf_tables without one of the expressions.
func (f *Firewall) tryNF() error {
	tx := f.transaction()
	if tx.Generation(); tx.Err != nil {
		return tx.Err
	}
	c := nativeChain(netstate.IPv4, netstate.Postrouting)
	c.Table.Name = "twill-try"
	tx.AddTable(c.Table)
	tx.AddChain(c)
	tx.AddRule(tx.rule(c, netstate.Rule{
		Mark: 1, Local: true, NotOut: "lo", Src: netip.MustParsePrefix("10.0.0.0/9"), Verdict: netstate.MasqueradeRandom,
	}, netstate.Appended))
	tx.DelTable(c.Table)
	if err := tx.commit(); err != nil {
		return fmt.Errorf("try nf_tables nat with fib and masquerade: %w", err)
	}
	return nil
}
