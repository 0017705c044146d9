package firewall

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// Pick chooses the mode and says why. What the config told (EnableNFTables; nil: nothing) wins. Otherwise it is
// nftables where the kernel has nf_tables, unless legacy iptables tables with rules are in use and can be
// written: a DROP there can only be overruled from there.
func Pick(told *bool) (netstate.Mode, string, error) {
	f := New()
	defer f.Close()
	kernel := f.tryNF()
	if errors.Is(kernel, unix.EPERM) {
		return 0, "", fmt.Errorf("choose a firewall mode: %w: the agent needs CAP_NET_ADMIN", kernel)
	}
	if told != nil {
		return pickTold(*told, kernel, &f.tools)
	}
	inUse, err := legacyInUse()
	if err != nil && !errors.Is(err, unix.EPERM) {
		return 0, "", fmt.Errorf("choose a firewall mode: %w", err)
	}
	_, missing := f.tools.get(legacy, netstate.IPv4)
	switch {
	case inUse && missing == nil:
		return netstate.IPTables, "legacy iptables tables are in use", nil
	case kernel == nil && inUse:
		return netstate.NFTables, "the kernel has nf_tables; legacy iptables tables are in use, but there is no iptables-legacy", nil
	case kernel == nil:
		return netstate.NFTables, "the kernel has nf_tables", nil
	case missing == nil:
		return netstate.IPTables, "the kernel has no nf_tables", nil
	}
	return 0, "", fmt.Errorf("choose a firewall mode: want a kernel with nf_tables or the iptables binaries: %w",
		errors.Join(kernel, missing))
}

func pickTold(nft bool, kernel error, tools *toolbox) (netstate.Mode, string, error) {
	if nft {
		if kernel != nil {
			return 0, "", fmt.Errorf("use nftables as the config says: %w", kernel)
		}
		return netstate.NFTables, "the config says EnableNFTables", nil
	}
	if _, err := tools.get(tools.variant(), netstate.IPv4); err != nil {
		return 0, "", fmt.Errorf("use iptables as the config says: %w", err)
	}
	return netstate.IPTables, "the config says EnableNFTables false", nil
}

// tryNF writes a rule with all that ours are made of into a table that the same transaction deletes again: a
// kernel can have nf_tables without one of the expressions.
func (f *Firewall) tryNF() error {
	if _, err := f.nf.generation(); err != nil {
		return err
	}
	e, err := encode(netstate.Rule{
		Mark: 1, Local: true, NotOut: "lo", Src: netip.MustParsePrefix("10.0.0.0/9"), Verdict: netstate.MasqueradeRandom,
	})
	if err != nil {
		return err
	}
	tx, err := nftables.New()
	if err != nil {
		return err
	}
	c := nativeChain(netstate.IPv4, netstate.Postrouting)
	c.Table.Name = "twill-try"
	tx.AddTable(c.Table)
	tx.AddChain(c)
	tx.AddRule(&nftables.Rule{Table: c.Table, Chain: c, Exprs: e})
	tx.DelTable(c.Table)
	if err := tx.Flush(); err != nil {
		return fmt.Errorf("try nf_tables nat with fib and masquerade: %w", err)
	}
	return nil
}
