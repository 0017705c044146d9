package attributes

const (
	fixed   = "fixed when the table is made"
	request = "nothing: only requests have it"
	counts  = "it counts packets"
	remark  = "it is a remark: our tables and chains are known by their names"
)

// Firewall returns the tables of our nftables tables, with Of what they are about: "table", "chain" and "rule". All else
// that stands in our tables is netstate.Strays, whatever its attributes.
func Firewall() []Table {
	return []Table{
		{Object: "nftables table", Where: "attributes", Prefix: "NFTA_TABLE_", Rows: []Attribute{
			field(1, "NAME", "", "Family"),
			derived(2, "FLAGS", "its bits"),
			field(3, "USE", "", "Strays: what is in the table and is not one of our chains"),
			derived(4, "HANDLE", "a number of the kernel's"),
			derived(5, "PAD", "nothing"),
			free(6, "USERDATA", "", remark),
			derived(7, "OWNER", fixed),
		}},
		{Object: "nftables table", Where: "NFTA_TABLE_FLAGS", Prefix: "NFT_TABLE_F_", Place: Bits, Path: []uint16{2},
			Rows: []Attribute{
				pinned(0, "DORMANT", "dormant", 0),
				derived(1, "OWNER", fixed),
				free(2, "PERSIST", "persist", "the table outlives its maker, as ours do anyhow"),
			}},
		{Object: "nftables chain", Where: "attributes", Prefix: "NFTA_CHAIN_", Rows: []Attribute{
			field(1, "TABLE", "", "Family"),
			derived(2, "HANDLE", "a number of the kernel's"),
			field(3, "NAME", "", "Role"),
			derived(4, "HOOK", "its table"),
			pinned(5, "POLICY", "policy", 1),
			derived(6, "USE", "how many rules it has"),
			field(7, "TYPE", "type", "Role"),
			free(8, "COUNTERS", "", counts),
			derived(9, "PAD", "nothing"),
			derived(10, "FLAGS", "a base chain has a hook"),
			derived(11, "ID", request),
			free(12, "USERDATA", "", remark),
		}},
		{Object: "nftables chain", Where: "NFTA_CHAIN_HOOK", Prefix: "NFTA_HOOK_", Path: []uint16{4}, Rows: []Attribute{
			field(1, "HOOKNUM", "hook", "Role"),
			field(2, "PRIORITY", "priority", "Role"),
			pinned(3, "DEV", "device", 0),
			derived(4, "DEVS", "nothing: chains of IP families have none"),
		}},
		{Object: "nftables rule", Where: "attributes", Prefix: "NFTA_RULE_", Rows: []Attribute{
			field(1, "TABLE", "", "Family"),
			field(2, "CHAIN", "", "Role"),
			derived(3, "HANDLE", "a number of the kernel's"),
			field(4, "EXPRESSIONS", "", "Rules; of the expression counter anybody may reset what it counted"),
			derived(5, "COMPAT", request),
			derived(6, "POSITION", "the handle of the rule before; the order is kept"),
			free(7, "USERDATA", "", remark+"; in chains of others the comment marks our rules, and is kept"),
			derived(8, "PAD", "nothing"),
			derived(9, "ID", request),
			derived(10, "POSITION_ID", request),
			derived(11, "CHAIN_ID", request),
		}},
	}
}
